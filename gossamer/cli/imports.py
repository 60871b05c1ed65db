"""Handlers of signals, and Ctrl-C during imports."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT."""


def interruptible_at_once() -> AbstractContextManager[None]:
    """Make Ctrl-C end the process immediately during a `with` block that imports modules.

    During imports, Python may ignore a KeyboardInterrupt, or print the error and continue.
    """

    def leave(*_: object) -> None:
        os.write(2, b"error: interrupted\n")
        os._exit(INTERRUPTED)

    return handling(signal.SIGINT, signal.default_int_handler, leave)


@contextmanager
def handling(number: int, usual: Any, handler: Callable[..., object]) -> Iterator[None]:
    """Handle a signal during a `with` block.

    usual: Python's handler of this signal. Any other handler is kept.
    """
    # only the main thread may set a handler
    if (threading.current_thread() is not threading.main_thread()
            or signal.getsignal(number) is not usual):
        yield
        return
    signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, usual)
