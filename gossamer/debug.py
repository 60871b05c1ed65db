"""What GOSSAMER_DEBUG shows, each level with what the ones below it show.

1: errors come with their traceback. 2: time, GFLOP/s and GB/s of every layer that runs, one after
another and not as a graph. 3: the config, and why other algorithms were passed over. 4: registers
and spilled bytes of its kernels, where the compiler tells.
"""

from __future__ import annotations

import os
import sys

LEVELS = (0, 1, 2, 3, 4)


def level() -> int:
    """The level asked for; what is no number counts as 1."""
    text = os.environ.get("GOSSAMER_DEBUG", "").strip()
    try:
        return max(0, min(int(text), LEVELS[-1])) if text else 0
    except ValueError:
        return 1


def show(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
