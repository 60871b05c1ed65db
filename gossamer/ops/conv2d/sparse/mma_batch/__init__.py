"""Sparse convolution on tensor cores, with images along the columns of an instruction."""
