"""Convolutions that skip zero weights."""
