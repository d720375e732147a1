"""The command line: `headrace COMMAND`. A command is one file in `commands`, imported only when it is called.

Owns flags, tables and exit codes. Must not hold logic of its own. Reading order: `main`, `settings` (flags,
files and environment to `EngineConfig`), then `commands`.
"""
