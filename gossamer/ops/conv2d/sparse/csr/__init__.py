"""Sparse convolution in the published direct form: CSR rows times the shifted input."""
