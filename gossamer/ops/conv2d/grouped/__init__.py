"""Convolutions in groups of several channels."""
