"""The seam to the hardware: `api` says what a backend offers, `backends/NAME` offers it, `bind` chooses one.

Must not know model families or requests.
"""
