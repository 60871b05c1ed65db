"""The cost of a product in kernels that multiply on tensor cores in float16, TF32 or float32
(mma/precisions.h)."""

CYCLES_OF_PRODUCT = {"fp16": 6.5, "tf32": 6.5, "fp32": 12.0}
"""Cycles of a scheduler for a product of 16 pixels, 8 channels and a step of input channels: 16 in
fp16, else 8. They hold for an H200; on another device only the order in which tiles are tried
follows from them."""
