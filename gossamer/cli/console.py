"""The entry point of the console script: streams, usage errors and exit codes.

Imports nothing heavy at the top, so that Ctrl-C is answered from the start.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from gossamer.errors import InputError

BROKEN_PIPE = 141
INTERRUPTED = 130


def main() -> NoReturn:
    """The console script `gossamer`."""
    code: Any = 0
    try:
        _open_streams()
        with _interruptible_at_once():
            from gossamer.cli.usage import invoke
        code = invoke()
        sys.stdout.flush()
    except InputError as error:
        code = _fail(str(error), 2)
    except BrokenPipeError:
        code = BROKEN_PIPE
    except SystemExit as stop:  # typer's own answer to a broken pipe is 1
        code = BROKEN_PIPE if _Output.broken else stop.code
    except KeyboardInterrupt:
        code = _fail("interrupted", INTERRUPTED)
    sys.exit(code)


@contextmanager
def _interruptible_at_once() -> Iterator[None]:
    """Ctrl-C ends the process here and now: within imports Python may lose a KeyboardInterrupt,
    or print it and go on."""

    def leave(*_: object) -> None:
        os.write(2, b"error: interrupted\n")
        os._exit(INTERRUPTED)

    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)
    yield
    signal.signal(signal.SIGINT, usual)


class _Output(io.FileIO):
    """Standard output whose failures say that they are its own. After one, what is still
    buffered goes nowhere: Python must not complain of it at exit."""

    broken = False

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if isinstance(error, BrokenPipeError):
                _Output.broken = True
                raise
            raise InputError(f"standard output: {error.strerror}") from None


def _open_streams() -> None:
    """Characters that a stream cannot encode are replaced; a closed stream swallows all."""
    closed = sys.stdout is None
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    if closed:
        return
    old = sys.stdout
    old.flush()
    raw = _Output(old.fileno(), "w", closefd=False)
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), encoding=old.encoding,
                                  errors="replace", line_buffering=raw.isatty())


def _fail(message: str, code: int) -> int:
    print("error:", *message.split(), file=sys.stderr)
    return code
