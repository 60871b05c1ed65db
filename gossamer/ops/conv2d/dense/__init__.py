"""Convolutions that multiply every weight, including zeros."""
