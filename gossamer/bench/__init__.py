"""Benchmarks: gossamer and other libraries are timed at the same work on the same machine."""
