"""Convolution with filters larger than 1 x 1, as one matrix product for each tap.

A work-group copies the pixels of its tile to shared memory once, for all taps.
"""
