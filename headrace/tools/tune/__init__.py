"""Finds settings that suit a workload: one setting after the other, each against the best so far, in pairs.

`knobs` says what may be changed, `duel` decides from the ratios of pairs, `search` walks, `live` measures on
servers of this machine, `report` writes tables and the settings file. `duel` and `search` know neither
servers nor time, so tests run them on made-up machines with known answers.
"""
