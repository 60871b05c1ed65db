"""Sparse convolution on tensor cores, with images along the instruction's columns."""
