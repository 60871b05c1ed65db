"""Hostile input: mutated files for every reader, read under limits of time and memory."""
