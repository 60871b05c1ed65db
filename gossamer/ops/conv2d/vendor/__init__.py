"""Convolutions by cuDNN, and by im2col with cuBLAS."""
