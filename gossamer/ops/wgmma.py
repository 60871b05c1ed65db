"""The header for kernels whose warpgroups multiply."""

from pathlib import Path

WGMMA_GROUPS = Path(__file__).with_name("wgmma_groups.h")
"""Groups of multiplications of a warpgroup, which it waits for."""
