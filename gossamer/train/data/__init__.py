"""Labelled samples: the files they come from, and how they become what a network takes."""
