"""Direct convolution on processors, by code generated for them."""
