"""The training loop: epochs over data that stay on one device, and checkpoints."""
