"""How models write tool calls, one dialect per file; `DIALECT` is the plugin."""
