"""The verbs of the command line. Only the verb that is called is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from gossamer.cli.guard import guarded
from gossamer.cli.imports import interruptible_at_once

# some versions of typer contain a copy of click, others import the package click
_CLICK = typer.BadParameter.__mro__[2].__module__.rpartition(".")[0]


@dataclass(frozen=True)
class Verb:
    """A verb, or a verb with sub-verbs, such as `cache`.

    help: the first sentence of the verb's help, so that verbs are listed without being imported.
    module: name of the module in gossamer.cli that has the functions.
    function: name of the verb's function; "" where the verb has sub-verbs.
    extension: name of a module in another package. Where this package is installed, the function is
    taken from this module.
    verbs: names of the sub-verbs' functions, by sub-verb.
    """

    help: str
    module: str
    function: str = ""
    extension: str = ""
    verbs: Mapping[str, str] | None = None

    def command(self, name: str) -> Any:
        """Imports the verb and returns its command."""
        with interruptible_at_once():
            package = self.extension.partition(".")[0]
            module = import_module(self.extension if package and find_spec(package)
                                   else f"gossamer.cli.{self.module}")
        app = typer.Typer(no_args_is_help=bool(self.verbs), add_completion=False,
                          rich_markup_mode=None, help=self.help if self.verbs else None)
        for verb, function in (self.verbs or {name: self.function}).items():
            app.command(verb)(guarded(getattr(module, function)))
        command = get_command(app)
        command.name = name
        return command


VERBS = {
    "devices": Verb("List the devices of this machine: PASS, or why one cannot be used.",
                    "devices", "devices"),
    "inspect": Verb("Show the nodes of a network's file: shapes, parameters, FLOPs and density.",
                    "inspect", "inspect"),
    "run": Verb("Run a network on photos or on arrays.", "run", "run"),
    "evaluate": Verb("Count how many labelled samples a network gets right: top-1 and top-5.",
                     "evaluate", "evaluate"),
    "detect": Verb("Find objects on photos, and draw boxes round them.",
                   "detect", "detect"),
    "bench": Verb("Measure gossamer beside others, in one process on one machine.",
                  "bench", "bench", extension="gossamer_bench.verb"),
    "serve": Verb("Answer requests over HTTP: tensors by the Open Inference Protocol, or pictures.",
                  "serve", "serve"),
    "compile": Verb("Find the fastest algorithm for every layer of a network, and save the plan.",
                    "compile", "compile_"),
    "convert": Verb("Write a network as an ONNX file.",
                    "convert", "convert"),
    "prune": Verb("Set the smallest weights of a network's convolutions and matrix products to "
                  "zero.", "prune", "prune_"),
    "advise": Verb("Measure what zeros would bring a network on a device, before it is trained "
                   "with them.", "advise", "advise_"),
    "samples": Verb("Copy photos and labelled digits to try gossamer on out of the wheels that are "
                    "installed.", "samples", "samples"),
    "train": Verb("Train a small fully connected network on labelled samples.", "train", "train"),
    "cache": Verb("List, clear, export or import what is kept on disk.", "cache", verbs={
        "list": "list_caches", "clear": "clear", "export": "export_file",
        "import": "import_file"}),
}


class Verbs(TyperGroup):
    """The group of all verbs."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns the names of the verbs, in the order of the help."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Imports a verb and returns its command; None for another name."""
        verb = VERBS.get(cmd_name)
        return None if verb is None else verb.command(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the list of verbs in the help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Returns how a shell may complete the name of a verb, or an option."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        item = import_module(f"{_CLICK}.shell_completion").CompletionItem
        return [item(name, help=verb.help) for name, verb in VERBS.items()
                if name.startswith(incomplete)]
