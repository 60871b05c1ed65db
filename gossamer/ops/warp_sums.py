"""The header for kernels that add up over the work-items of a warp."""

from pathlib import Path

WARP_SUMS = Path(__file__).with_name("warp_sums.h")
"""The header that these kernels include."""
