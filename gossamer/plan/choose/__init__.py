"""Chooses the algorithm of each layer, and compares the chosen plan with baseline plans."""
