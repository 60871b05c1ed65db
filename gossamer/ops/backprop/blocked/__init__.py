"""Exact blocking: online back-propagation with the first layer's work in blocks of samples."""
