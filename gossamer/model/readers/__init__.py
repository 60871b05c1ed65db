"""Readers: one for each kind of file that a network or its tensors come in."""
