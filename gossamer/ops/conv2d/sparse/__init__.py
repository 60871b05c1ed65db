"""Convolutions that skip the zeros among the weights."""
