"""Direct sparse convolution over rows of (column, value), as published."""
