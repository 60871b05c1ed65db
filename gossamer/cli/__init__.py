"""The command line: one file a verb, with shared options and tables."""
