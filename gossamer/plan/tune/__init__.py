"""Preparation, checks and timing of candidates."""
