"""The command line: one verb a function."""

from __future__ import annotations

import functools
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, NoReturn

import typer

import gossamer
from gossamer import debug
from gossamer.cli import (
    bench as bench_cli,
)
from gossamer.cli import (
    cache as cache_cli,
)
from gossamer.cli import (
    compile,
    prune,
    show,
)
from gossamer.cli import (
    run as run_cli,
)
from gossamer.cli import (
    train as train_cli,
)
from gossamer.cli.run import JsonOption, ModelArgument, ShapeOption, load_graph
from gossamer.errors import GossamerError, GossamerWarning
from gossamer.model.infer.resolve import resolve
from gossamer.plan.report.summary import summarise

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Makes thin networks fast: runs a trained network layer by layer on CUDA, OpenCL or "
         "NumPy.",
)


def _guarded(verb: Callable[..., None]) -> Callable[..., None]:
    """Errors become one line on stderr and an exit code: 2 for what the user can mend, 1 for a
    fault of gossamer's own, 130 for Ctrl-C. Warnings become one-line notices."""

    @functools.wraps(verb)
    def guarded(*args: Any, **options: Any) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", GossamerWarning)
                warnings.showwarning = lambda message, *_, **__: show.notice(message, "warning")
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
    first, *more = message.strip().splitlines() or [type(error).__name__]
    if debug.level() >= 1:
        traceback.print_exception(error)
    elif more:
        first += " (GOSSAMER_DEBUG=1 shows the rest)"
    show.notice(first, "error")
    raise typer.Exit(code) from None


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"gossamer {version('gossamer')}")
        raise typer.Exit


@app.callback()
def _options(version: Annotated[bool, typer.Option(
        "--version", callback=_version, is_eager=True, help="Print the version.")] = False) -> None:
    pass


@app.command()
@_guarded
def devices(as_json: JsonOption = False) -> None:
    """List the devices of this machine: PASS, or why one cannot be used."""
    rows = [asdict(found) for found in gossamer.devices()]
    if as_json:
        show.print_json(rows)
        return
    for row in rows:
        row["memory"] = show.bytes_text(row["memory_bytes"]) if row["memory_bytes"] else ""
        row["compute_units"] = row["compute_units"] or None
        row["state"] = row["problem"] or "PASS"
    show.print_table({"name": "device", "state": "state", "description": "name",
                      "compute_units": "compute units", "memory": "memory", "driver": "driver"}, rows,
                    spare=("driver", "memory", "compute_units", "description"))


@app.command()
@_guarded
def inspect(
    model: ModelArgument,
    batch: Annotated[int, typer.Option(min=0, help="Images at once.")] = 1,
    shape: ShapeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the nodes of a network's file: shapes, parameters, FLOPs and density."""
    graph = load_graph(model, shape)
    rows = [asdict(row) for row in summarise(resolve(graph, batch))]
    totals = {"parameters": sum(row["parameters"] for row in rows),
              "flops": sum(row["flops"] for row in rows)}
    if as_json:
        show.print_json({"model": model, "batch": batch, **totals, "rows": rows})
        return
    show.print_summary(rows)
    print(f"{len(rows)} nodes, {show.human(totals['parameters'])} parameters, "
          f"{show.human(totals['flops'])} FLOPs at batch {batch}")


app.command()(_guarded(run_cli.run))
app.command()(_guarded(bench_cli.bench))
app.command("compile")(_guarded(compile.compile_))
app.command("prune")(_guarded(prune.prune_))
app.command()(_guarded(train_cli.train))

cache = typer.Typer(no_args_is_help=True, help="List or clear what is kept on disk.")
app.add_typer(cache, name="cache")
cache.command("list")(_guarded(cache_cli.list_caches))
cache.command("clear")(_guarded(cache_cli.clear))
