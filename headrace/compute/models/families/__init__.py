"""One model family per file: how its configuration becomes layers. Each exposes `FAMILY`; none has a forward pass."""
