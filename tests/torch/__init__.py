"""Tests of modules of PyTorch; those that need it are skipped where it is not installed."""
