"""Sparse convolution by code generated for the layer's weights."""
