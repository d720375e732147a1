"""The reference backend: plain numpy in float32, the definition of right for every operation.

Slow on purpose: every row is computed alone, so that no result can depend on its neighbours. `BACKEND(...)`
makes one. Reading order: `backend`, `ops`, `kv`. Sampling is defined in `compute/sampling`.
"""

from headrace.compute.ops.backends.reference.backend import ReferenceBackend

BACKEND = ReferenceBackend
