"""The environment variable GOSSAMER_DEBUG, whose levels show more and more; each level includes the
lower ones.

1: Errors come with their traceback.
2: Every layer that runs is listed with its time, GFLOP/s and GB/s. Layers run one after another
   and not as a graph.
3: Each layer's config is listed, and the reasons why other algorithms were rejected.
4: Registers and spilled bytes of its kernels are listed, where the compiler reports them.
"""

from __future__ import annotations

import os
import sys

LEVELS = (0, 1, 2, 3, 4)


def level() -> int:
    """Returns the level that the environment sets; a value that is not a number counts as 1."""
    text = os.environ.get("GOSSAMER_DEBUG", "").strip()
    try:
        return max(0, min(int(text), LEVELS[-1])) if text else 0
    except ValueError:
        return 1


def show(line: str) -> None:
    """Prints a line to standard error."""
    print(line, file=sys.stderr, flush=True)
