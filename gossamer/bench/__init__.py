"""Benchmarks: what gossamer and others need for the same work, side by side on one machine."""
