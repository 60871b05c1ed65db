"""Dense convolution on tensor cores."""
