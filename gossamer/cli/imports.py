"""Handling of Ctrl-C during imports."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT."""


@contextmanager
def interruptible_at_once() -> Iterator[None]:
    """Make Ctrl-C end the process immediately during a `with` block that imports modules.

    During imports, Python may ignore a KeyboardInterrupt, or print the error and continue.
    """

    def leave(*_: object) -> None:
        os.write(2, b"error: interrupted\n")
        os._exit(INTERRUPTED)

    # only the main thread may set a handler, and an existing handler is kept
    if (threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGINT) is not signal.default_int_handler):
        yield
        return
    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
