"""Convolution with windows as one product per tap.

A work-group copies its pixels to shared memory once, for all taps.
"""
