"""The command line: one file for each verb, and what several verbs share."""
