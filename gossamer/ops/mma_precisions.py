"""The cost of a product in kernels that multiply on tensor cores in float16, TF32 or float32
(mma/precisions.h)."""

CYCLES_OF_PRODUCT = {"fp16": 6.5, "tf32": 6.5, "fp32": 12.0}
"""Cycles that a sub-partition of a multiprocessor takes for a product of 16 pixels by 8 output
channels over one step of K. A step has 16 input channels in fp16, and 8 in tf32 and fp32. The
cycles hold for an H200; on another device they only decide the order in which tiles are tried."""
