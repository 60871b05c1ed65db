"""Direct convolution on CPUs, by code generated for the CPU at hand."""
