"""The header for kernels that begin while the one before them still runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

EARLY_BEGIN = Path(__file__).with_name("early_begin.h")
"""The header that these kernels include; their sources say `begins_early`."""
BEGINS_EARLY: Mapping[str, Any] = {"headers": (EARLY_BEGIN,), "begins_early": True}
"""The source of a kernel of the dialect states this if the kernel has BEGIN_EARLY() at its start.
Of a chain of small kernels each then waits on the multiprocessors, not in the queue, for the one
before it."""
