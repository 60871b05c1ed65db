"""Sparse convolution over tables of blocks of output channels."""
