"""The header for kernels that multiply on tensor cores in float16, TF32 or float32."""

from pathlib import Path

MMA_PRECISIONS = Path(__file__).with_name("mma_precisions.h")
"""The header that these kernels include; they define the macros HALVES and TF32."""
CYCLES_OF_PRODUCT = {"fp16": 6.5, "tf32": 6.5, "fp32": 12.0}
"""Cycles of a scheduler for a product of 16 pixels, 8 channels and a step of input channels: 16 in
fp16, else 8."""
