"""The entry point of the console script: streams, usage errors and exit codes.

The module imports little at the top, so that Ctrl-C is handled from the start.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, NoReturn

from gossamer.cli.imports import INTERRUPTED, interruptible_at_once
from gossamer.errors import InputError, one_line

BROKEN_PIPE = 141
"""Exit code if the reader of standard output has closed it: 128 + SIGPIPE."""


def main() -> NoReturn:
    """Run the console script `gossamer`, and exit with its exit code."""
    code: Any = 0
    try:
        _open_streams()
        with interruptible_at_once():
            from gossamer.cli.app import invoke
        code = invoke()
        sys.stdout.flush()
    except InputError as error:
        code = _fail(str(error), 2)
    except BrokenPipeError:
        code = BROKEN_PIPE
    except SystemExit as stop:  # typer itself exits with code 1 on a broken pipe
        code = BROKEN_PIPE if _Output.broken else stop.code
    except KeyboardInterrupt:
        code = _fail("interrupted", INTERRUPTED)
    sys.exit(code)


class _Output(io.FileIO):
    """Standard output whose write errors can be distinguished from other errors.

    After a failed write, further output goes to the null device, so that Python does not print a
    second error when it flushes its buffers at exit.

    broken: whether the reader has closed standard output.
    """

    broken = False

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            null_device = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null_device, self.fileno())
            os.close(null_device)
            if isinstance(error, BrokenPipeError):
                _Output.broken = True
                raise
            raise InputError(f"standard output: {error.strerror}") from None


def _open_streams() -> None:
    """Make stdout replace characters that it cannot encode, and report write errors.

    If stdout or stderr is closed, output to it is discarded.
    """
    is_closed = sys.stdout is None
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    if is_closed:
        return
    old = sys.stdout
    old.flush()
    raw = _Output(old.fileno(), "w", closefd=False)
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), encoding=old.encoding,
                                  errors="replace", line_buffering=raw.isatty())


def _fail(message: str, code: int) -> int:
    print(one_line(" ".join(["error:", *message.split()])), file=sys.stderr)
    return code
