"""Convolutions of signs, computed on bits."""
