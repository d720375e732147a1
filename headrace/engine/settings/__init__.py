"""How settings came to their values. Must not know requests. Reading order: `notes`, `activations`."""
