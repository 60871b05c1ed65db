"""The typer application: registers the verbs, and turns errors into messages and exit codes."""

from __future__ import annotations

import functools
import traceback
import warnings
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from gossamer import debug
from gossamer.cli import bench, cache, compile, devices, evaluate, inspect, prune, run, train
from gossamer.errors import GossamerError, GossamerWarning
from gossamer.io import terminal

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Makes thin networks fast: runs a trained network layer by layer on CUDA, OpenCL or "
         "NumPy.",
)


def _guarded(verb: Callable[..., None]) -> Callable[..., None]:
    """Returns the verb with its errors turned into one line on stderr and an exit code: 2 for
    what the user can mend, 1 for a fault of gossamer's own, 130 for Ctrl-C. Warnings become
    one-line notices."""

    @functools.wraps(verb)
    def guarded(*args: Any, **options: Any) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", GossamerWarning)
                warnings.showwarning = lambda message, *_, **__: terminal.notice(message,
                                                                                 "warning")
                verb(*args, **options)
        except GossamerError as error:
            _fail(error, str(error), 2)
        except KeyboardInterrupt as error:
            _fail(error, "interrupted", 130)
        except MemoryError as error:
            _fail(error, f"the host's memory does not suffice ({error})", 2)
        except BrokenPipeError:
            raise  # the reader of our output has left
        except OSError as error:
            if error.filename is None:
                _fault(error)
            _fail(error, f"{error.filename}: {error.strerror}", 2)
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            _fault(error)

    return guarded


def _fault(error: Exception) -> NoReturn:
    _fail(error, f"a fault in gossamer itself ({type(error).__name__}: {error}); "
                 "GOSSAMER_DEBUG=1 shows where", 1)


def _fail(error: BaseException, message: str, code: int) -> NoReturn:
    line, *more_lines = message.strip().splitlines() or [type(error).__name__]
    if debug.level() >= 1:
        traceback.print_exception(error)
    elif more_lines:
        line += " (GOSSAMER_DEBUG=1 shows the rest)"
    terminal.notice(line, "error")
    raise typer.Exit(code) from None


def _version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        print(f"gossamer {version('gossamer')}")
        raise typer.Exit


@app.callback()
def _options(version: Annotated[bool, typer.Option(
        "--version", callback=_version, is_eager=True, help="Print the version.")] = False) -> None:
    pass


app.command()(_guarded(devices.devices))
app.command()(_guarded(inspect.inspect))
app.command()(_guarded(run.run))
app.command()(_guarded(evaluate.evaluate))
app.command()(_guarded(bench.bench))
app.command("compile")(_guarded(compile.compile_))
app.command("prune")(_guarded(prune.prune_))
app.command()(_guarded(train.train))

cache_app = typer.Typer(no_args_is_help=True,
                        help="List, clear, export or import what is kept on disk.")
app.add_typer(cache_app, name="cache")
cache_app.command("list")(_guarded(cache.list_caches))
cache_app.command("clear")(_guarded(cache.clear))
cache_app.command("export")(_guarded(cache.export_file))
cache_app.command("import")(_guarded(cache.import_file))
