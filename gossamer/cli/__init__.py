"""The command line: one file per verb (subcommand), and shared options and helpers."""
