"""Execution of plans: buffers, memory, captured graphs, inputs and outputs."""
