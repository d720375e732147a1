"""One proposer per file; the file's name is what `--speculate` takes."""
