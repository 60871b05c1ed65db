"""Sparse convolution by code that is generated for the weights of a layer."""
