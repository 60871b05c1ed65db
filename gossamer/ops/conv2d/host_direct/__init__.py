"""Direct convolution on CPUs, by code generated for this CPU."""
