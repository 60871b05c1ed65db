"""Benchmarks of gossamer and other libraries on the same work and machine."""
