"""Debug output, to the logger `gossamer` and to standard error.

The environment variable GOSSAMER_DEBUG sets the level; each level includes the lower ones.

1: Errors come with their traceback.
2: Each epoch of training is listed with its time.

The lines of level 2 are logged at level DEBUG. If a program sets the logger's level to DEBUG, its
handlers receive these lines, and the debug level is 2, even without GOSSAMER_DEBUG.
"""

from __future__ import annotations

import logging
import os
import sys

LEVELS = (0, 1, 2)

logger = logging.getLogger("gossamer")
logger.addHandler(logging.NullHandler())


def level() -> int:
    """Return the debug level, from 0 to 2.

    A value of GOSSAMER_DEBUG that is not a number means 1. The level is 2 if the logger
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
