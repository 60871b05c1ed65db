"""Binary convolutions: products of signs, computed on bits."""
