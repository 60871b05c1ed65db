"""Loads the fixtures of all tests, which those of gossamer and of its benchmarks share."""

pytest_plugins = ["tests.fixtures"]
