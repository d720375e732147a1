"""One number format per file, named like GGUF's types in lower case; each exposes `SCHEME`."""
