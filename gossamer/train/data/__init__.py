"""Labelled samples: reading them from files, and preparing them for a network."""
