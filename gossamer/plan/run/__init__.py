"""A plan that runs: buffers, memory, captured graphs, and what goes in and out."""
