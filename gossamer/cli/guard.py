"""Messages and exit codes for the errors and warnings of verbs."""

from __future__ import annotations

import functools
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import typer

from gossamer import debug
from gossamer.cli.imports import handling
from gossamer.errors import GossamerError, GossamerWarning


def guarded(verb: Callable[..., None]) -> Callable[..., None]:
    """Decorate a verb to turn errors into one-line messages and exit codes.

    The code is 2 for a user error, 1 for a fault in gossamer itself, 130 for Ctrl-C and 143 for
    SIGTERM. Warnings become one-line notices.
    """

    @functools.wraps(verb)
    def guarded_verb(*args: Any, **options: Any) -> None:
        if terminal := sys.modules.get("gossamer.io.terminal"):
            terminal.forget_notices()
        received: list[int] = []

        def terminate(number: int, _: object) -> None:
            # cleanup code restores the terminal's cursor and removes partially written files
            received.append(number)
            raise Terminated

        try:
            with warnings.catch_warnings(), handling(signal.SIGTERM, signal.SIG_DFL, terminate):
                warnings.simplefilter("always", GossamerWarning)
                warnings.showwarning = lambda message, *_, **__: _notice(message, "warning")
                verb(*args, **options)
        except GossamerError as error:
            _fail(error, str(error), 2)
        except KeyboardInterrupt as error:
            from rich.console import Console

            # a progress bar hides the cursor, and may not restore it after Ctrl-C
            Console(stderr=True).show_cursor()
            if isinstance(error, Terminated):
                _fail(error, "terminated", error.exit_code)
            _fail(error, "interrupted", 130)
        except MemoryError as error:
            _fail(error, f"the host has too little memory ({error})", 2)
        except BrokenPipeError:
            raise  # the reader closed standard output: console.py exits without a message
        except OSError as error:
            if error.filename is None:
                _fault(error)
            _fail(error, f"{error.filename}: {error.strerror}", 2)
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            if received:  # imports of compiled modules turn Terminated into other errors
                _fail(error, "terminated", Terminated.exit_code)
            _fault(error)

    return guarded_verb


class Terminated(KeyboardInterrupt):
    """Raised when the process receives SIGTERM, for example from a job scheduler."""

    exit_code = 128 + signal.SIGTERM


def _fault(error: Exception) -> NoReturn:
    _fail(error, f"a fault in gossamer itself ({type(error).__name__}: {error}); "
                 "GOSSAMER_DEBUG=1 shows where", 1)


def _fail(error: BaseException, message: str, code: int) -> NoReturn:
    line, *more_lines = message.strip().splitlines() or [type(error).__name__]
    if debug.level() >= 1:
        traceback.print_exception(error)
    elif more_lines:
        line += " (GOSSAMER_DEBUG=1 shows the rest)"
    _notice(line, "error")
    raise typer.Exit(code) from None


def _notice(message: object, kind: str) -> None:
    from gossamer.io import terminal

    terminal.notice(message, kind)
