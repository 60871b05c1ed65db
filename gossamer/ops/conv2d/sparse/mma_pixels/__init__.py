"""Sparse convolution on tensor cores, with output pixels along the columns of an instruction."""
