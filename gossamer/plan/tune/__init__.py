"""Candidates: prepared, checked against the reference, and timed."""
