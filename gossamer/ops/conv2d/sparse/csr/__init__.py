"""Direct sparse convolution as it was published: CSR rows times the shifted input."""
