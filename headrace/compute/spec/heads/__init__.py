"""Trained heads that draft from the target's hidden states: their files, and what they compute.

Must not know slots or steps (`proposers/`). Read `files`, then `medusa`.
"""
