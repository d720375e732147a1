"""Metrics of a running server, scraped and recorded for the checks of `headrace/engine/doctor`."""
