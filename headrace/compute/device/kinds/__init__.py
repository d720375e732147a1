"""One kind of device per file."""
