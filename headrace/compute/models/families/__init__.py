"""One model family per file: how its configuration becomes layers; each exposes `FAMILY`.

None has a forward pass of its own. `_layers` holds the two kinds of layer that they vary.
"""
