"""Benchmarks: `python -m benchmarks.run` (`make bench`) measures, `python -m benchmarks.report` writes it up.

Reading order: `figures` (arithmetic), `costs` (bytes and operations of a model), `limits` (what the machine
can do), `store` (the JSON file), `engine` and `bare` (Headrace in process against llama-bench), `text`,
`client`, `workloads` and `served` (servers under load), `peers` (how the others are installed and started),
`report` and `plot`. Besides: `overhead` and `overhead_server` (what a step costs around its kernels).
"""
