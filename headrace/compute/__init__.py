"""One step on one device: weights, the decoder, kernels, sampling, the runner.

Owns tensors. Must not know requests' text, queues or HTTP. Reading order: `ops/api` (the seam to the
hardware), `models/decoder` (the one forward pass), `runner`, then `weights`, `quant`, `sampling`, `device`.
"""
