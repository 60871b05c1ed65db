"""The header for kernels whose work-groups form clusters."""

from pathlib import Path

CLUSTERS = Path(__file__).with_name("clusters.h")
"""The header that these kernels include; they define the macro CLUSTER."""
