"""Convolutions that multiply every weight."""
