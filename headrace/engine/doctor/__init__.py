"""What holds a running server up now, with the numbers that prove it and what attacks it.

Reading order: `trace` (metrics over some seconds), `machine` (facts of this host), `finding` (what a check
says), `checks` (one per file: silent on a healthy trace, it speaks on its fault), `diagnosis` (all of them).
Must not know HTTP: the server diagnoses itself, the command what it scraped.
"""
