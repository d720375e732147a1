"""One drafter per file; the file's name, with `-` for `_`, is what `--speculate` takes before `=`."""
