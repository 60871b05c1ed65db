"""Exact blocking: online back-propagation that processes the first layer in blocks of samples."""
