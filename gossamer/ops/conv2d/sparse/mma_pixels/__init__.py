"""Sparse convolution on tensor cores, with output pixels along the instruction's columns."""
