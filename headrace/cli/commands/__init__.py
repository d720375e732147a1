"""The commands, one per file: its name is the command, its first line the help, `command` the function.

Nothing heavy is imported at the top of a file here: `headrace COMMAND --help` must be quick.
"""
