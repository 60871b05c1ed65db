"""A first convolution, of few input channels, and the maximum over windows behind it."""
