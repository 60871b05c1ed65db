"""The choice of what computes each layer, and the plans that it is compared with."""
