"""What is asked: talks of one or more turns, made on this machine or read from files. Nothing is downloaded.

Owns prompts and lengths. Must not know servers or clocks. Reading order: `talk`, `made`, `files`, `choose`.
"""
