"""Convolutions of signs on the tensor cores of NVIDIA's GPUs, which multiply bits."""
