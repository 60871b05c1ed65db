"""The choice of what computes each layer, and its comparison with baseline plans."""
