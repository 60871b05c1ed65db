"""Sparse convolution by code generated for the weights of a layer."""
