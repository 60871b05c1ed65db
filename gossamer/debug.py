"""The report of what gossamer does, by the logger `gossamer` and on standard error.

The environment variable GOSSAMER_DEBUG sets the level; each level includes the lower ones.

1: Errors come with their traceback.
2: Every layer that runs is listed with its time, GFLOP/s and GB/s. Layers are launched one after
   another, without a captured graph.
3: Each layer's config is listed, and the reasons why other algorithms were rejected.
4: Registers and spilled bytes of each layer's kernels are listed, where the compiler reports them.

The lines of levels 2 to 4 are messages of the logger's level DEBUG. A program that sets the logger
to DEBUG gets these lines in its own handlers; where GOSSAMER_DEBUG is not set, the level is 2.
"""

from __future__ import annotations

import logging
import os
import sys

LEVELS = (0, 1, 2, 3, 4)

logger = logging.getLogger("gossamer")
logger.addHandler(logging.NullHandler())


def level() -> int:
    """Return the level that the environment sets; a value that is not a number means 1. Where the
    logger accepts messages of level DEBUG, the level is at least 2."""
    text = os.environ.get("GOSSAMER_DEBUG", "").strip()
    try:
        level = max(0, min(int(text), LEVELS[-1])) if text else 0
    except ValueError:
        level = 1
    return max(level, 2) if logger.isEnabledFor(logging.DEBUG) else level


def show(line: str) -> None:
    """Log a line, and print it to standard error where GOSSAMER_DEBUG asks for it."""
    logger.debug("%s", line)
    if os.environ.get("GOSSAMER_DEBUG", "").strip():
        print(line, file=sys.stderr, flush=True)
