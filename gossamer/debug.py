"""Debug output, to the logger `gossamer` and to standard error.

The environment variable GOSSAMER_DEBUG sets the level; each level includes the lower ones.

1: Errors come with their traceback.
2: Every layer that runs is listed with its time, GFLOP/s and GB/s. Layers are launched one after
   another, without a captured graph.
3: Each layer is also listed with its config and the reasons why other algorithms were rejected.
4: Each layer is also listed with the registers and spilled bytes of its kernels, if the compiler
   reports them.

The lines of levels 2 to 4 are logged at level DEBUG. If a program sets the logger's level to DEBUG,
its handlers receive these lines, and the debug level is at least 2, even without GOSSAMER_DEBUG.
"""

from __future__ import annotations

import logging
import os
import sys

LEVELS = (0, 1, 2, 3, 4)

logger = logging.getLogger("gossamer")
logger.addHandler(logging.NullHandler())


def level() -> int:
    """Return the debug level, from 0 to 4.

    A value of GOSSAMER_DEBUG that is not a number means 1. The level is at least 2 if the logger
    accepts DEBUG messages.
    """
    text = os.environ.get("GOSSAMER_DEBUG", "").strip()
    try:
        level = max(0, min(int(text), LEVELS[-1])) if text else 0
    except ValueError:
        level = 1
    return max(level, 2) if logger.isEnabledFor(logging.DEBUG) else level


def show(line: str) -> None:
    """Log a line, and print it to standard error if GOSSAMER_DEBUG is set."""
    logger.debug("%s", line)
    if os.environ.get("GOSSAMER_DEBUG", "").strip():
        print(line, file=sys.stderr, flush=True)
