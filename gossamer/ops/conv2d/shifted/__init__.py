"""Convolution with windows of stride 1 as one product for each tap, over pixels that a work-group
copies to shared memory once."""
