"""The typer application: its verbs and its own options."""

from __future__ import annotations

from typing import Annotated

import typer

from gossamer.cli.verbs import Verbs

app = typer.Typer(
    cls=Verbs, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Makes thin networks fast: runs a trained network layer by layer on CUDA, OpenCL or "
         "the host, by NumPy and ONNX Runtime.",
)


def _version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        print(f"gossamer {version('gossamer')}")
        raise typer.Exit


@app.callback()
def _options(version: Annotated[bool, typer.Option(
        "--version", "-V", callback=_version, is_eager=True,
        help="Print the version.")] = False) -> None:
    pass
