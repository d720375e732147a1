"""Weights kept in the backend's own form, so that the second start need not make them again.

`file` is the format of one file, `cache` the folder of such files, `store` what loading a model uses: it
takes a weight from the file where it can and lets the backend make it where it cannot. Files are untrusted:
whatever is wrong with one costs a line in the log and a start without it. What the bytes of a weight mean
only the backend knows (`Packer` in `ops/api.py`). Reading order: `file`, `cache`, `store`.
"""
