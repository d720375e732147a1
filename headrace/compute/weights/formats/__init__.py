"""One container per file; each exposes `FORMAT` (see `weights/checkpoint.Format`)."""
