"""The header for kernels that begin while the one before them still runs."""

from pathlib import Path

EARLY_BEGIN = Path(__file__).with_name("early_begin.h")
"""The header that these kernels include; their sources say `begins_early`."""
