"""The command line: one file for each verb, with shared options and tables."""
