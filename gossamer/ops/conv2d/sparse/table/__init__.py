"""Sparse convolution with weights in tables of blocks of output channels."""
