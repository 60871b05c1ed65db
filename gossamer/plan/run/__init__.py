"""A plan that runs: buffers, memory, captured graphs, inputs and outputs."""
