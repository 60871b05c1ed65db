"""Passes: rewrites of a graph that keep its results."""
