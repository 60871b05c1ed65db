"""NVIDIA GPUs: the driver API, the compilers, and memory shared with other libraries."""
