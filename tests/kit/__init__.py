"""What tests share: made-up checkpoints, and a small harness that runs a model over paged KV."""
