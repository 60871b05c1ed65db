"""The command line: one file per verb, and shared options and helpers."""
