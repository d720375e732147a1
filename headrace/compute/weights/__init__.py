"""Checkpoints: from files to a model's description and weights, without copying or trusting the file.

Owns: `checkpoint` (`open_checkpoint`, what a container offers), `modelspec` (how a family reads a
configuration), `tensors` (stored tensors and how canonical weights are cut out of them), `formats/NAME` (one
container each). Must not know backends or devices. Every number of a file is checked against the file's size
before it is used.

Canonical names: `embed`, `norm`, `head`, and per layer `layers.N.` with `attn_norm`, `q`, `k`, `v`, `o`,
`q_norm`, `k_norm`, `post_attn_norm`, `mlp_norm`, `gate`, `up`, `down`, `post_mlp_norm`; each followed by
`.weight` or `.bias`.

Reading order: `checkpoint`, `tensors`, `modelspec`, `formats/gguf`, `formats/safetensors`.
"""
