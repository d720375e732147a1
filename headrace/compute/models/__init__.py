"""Models: the one forward pass and the data that describes each family.

Owns: `decoder` (the forward pass over `Ops`), `load` (weights into a backend's form), `rope` (angle tables),
`families/NAME` (one family each). Must not know containers' bytes, requests or devices.
Reading order: `decoder`, `families/llama`, `families/gemma3`, `rope`, `load`.
"""
