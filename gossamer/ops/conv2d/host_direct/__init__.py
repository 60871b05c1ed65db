"""Direct convolution on processors, by code that is generated for them."""
