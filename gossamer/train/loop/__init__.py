"""The training loop, with all data on one device, and checkpoints."""
