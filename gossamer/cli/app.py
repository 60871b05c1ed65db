"""The table of verbs (subcommands); only the module of the called verb is imported."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from gossamer.cli.guard import guarded
from gossamer.cli.imports import interruptible_at_once
from gossamer.errors import InputError, did_you_mean

# the base class of click's exceptions, from typer: some versions of typer bundle a copy of click
_ClickException: Any = typer.BadParameter.__mro__[2]


@dataclass(frozen=True)
class Verb:
    """A verb. Some verbs, such as `cache`, have sub-verbs.

    help: the first sentence of the verb's help. The sentence is repeated here so that the list of
    verbs can be printed without importing the verbs' modules.
    function: name of the verb's function; "" means the name of the verb.
    module: name of the function's module in gossamer.cli; "" means the name of the verb.
    extension: name of a module in another package, used instead of `module` if the package is
    installed.
    verbs: the names of the sub-verbs, each with the name of its function; None if there are none.
    """

    help: str
    function: str = ""
    module: str = ""
    extension: str = ""
    verbs: Mapping[str, str] | None = None

    def command(self, name: str) -> Any:
        """Import the verb's module, and return its click command."""
        with interruptible_at_once():
            package = self.extension.partition(".")[0]
            module = import_module(self.extension if package and find_spec(package)
                                   else f"gossamer.cli.{self.module or name}")
        app = typer.Typer(no_args_is_help=bool(self.verbs), add_completion=False,
                          rich_markup_mode=None, help=self.help if self.verbs else None)
        for verb, function in (self.verbs or {name: self.function or name}).items():
            app.command(verb)(guarded(getattr(module, function)))
        command = get_command(app)
        command.name = name
        return command


VERBS = {
    "devices": Verb("List the devices of this machine: PASS, or why one cannot be used.",
                    module="inspect"),
    "inspect": Verb("Show the nodes of a network: shapes, parameters, FLOPs and density."),
    "run": Verb("Run a network on photos or on arrays."),
    "evaluate": Verb("Compute the top-1 and top-5 accuracy of a network on labelled samples."),
    "detect": Verb("Find objects on photos, and draw boxes around them."),
    "bench": Verb("Compare the speed of gossamer with that of PyTorch and ONNX Runtime.",
                  extension="gossamer_bench.verb"),
    "serve": Verb("Serve networks over HTTP, for tensors (Open Inference Protocol) or images."),
    "compile": Verb("Find the fastest algorithm for every layer of a network, and save the plan.",
                    "compile_"),
    "convert": Verb("Write a network as an ONNX file."),
    "prune": Verb("Set the smallest weights of convolutions and matrix products to zero.",
                  "prune_"),
    "advise": Verb("Measure how much faster pruning would make a network on a device.",
                   "advise_"),
    "samples": Verb("Copy sample photos and labelled digits from installed packages."),
    "train": Verb("Train a small fully connected network on labelled samples."),
    "cache": Verb("Manage the stored measurements and compiled kernels.", verbs={
        "list": "list_caches", "clear": "clear", "export": "export_file",
        "import": "import_file"}),
}


class Verbs(TyperGroup):
    """The group of all verbs."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the verbs in the order of the help."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a verb's module, and return its click command; None for an unknown verb."""
        verb = VERBS.get(cmd_name)
        return None if verb is None else verb.command(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of verbs in the help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the verbs or options that begin with an incomplete word."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        click = _ClickException.__module__.rpartition(".")[0]
        item = import_module(f"{click}.shell_completion").CompletionItem
        return [item(name, help=verb.help) for name, verb in VERBS.items()
                if name.startswith(incomplete)]


app = typer.Typer(
    cls=Verbs, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Makes thin networks fast (pruned, binarised, depthwise-separable or just small) on "
         "CUDA, OpenCL or the host.",
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


def invoke() -> int:
    """Run the verb named in the process's arguments, and return the exit code.

    Raises InputError for invalid arguments.
    """
    try:
        return app(prog_name="gossamer", standalone_mode=False) or 0
    except typer.Abort:
        raise KeyboardInterrupt from None
    except _ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message(), file=sys.stderr)
            return 2
        raise InputError(_explained(error)) from None


def _explained(error: Any) -> str:
    """Convert click's usage error to gossamer's form, with the option's value."""
    message = error.format_message()
    if match := re.match(r"Invalid value for '?([^':]+)'?(?: / '[^']*')*: (.*)", message, re.S):
        option, reason = match.groups()
        option_text = f"{option} {_value(option)}".strip()
        if least := re.search(r"(?:x>=|greater than or equal to )(\d+)", reason):
            return f"{option_text}: expected {least[1]} or more"
        if kind := re.search(r"valid (integer|number|float)", reason):
            return f"{option_text}: expected a {'whole ' if kind[1] == 'integer' else ''}number"
        return f"{option_text}: {reason}"
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "gossamer"
    message = message.strip().rstrip(".")
    if (verb := re.match(r"No such command '(.*?)'", message)) and context is not None:
        message = verb[0] + did_you_mean(verb[1], context.command.list_commands(context))
    elif hasattr(error, "possibilities") and context is not None:
        options = [name for each in context.command.get_params(context) for name in each.opts]
        message = error.message + did_you_mean(error.option_name, options)
    return f"{message[:1].lower()}{message[1:]}; see `{path} --help`"


def _value(option: str) -> str:
    """Return an option's value on the command line; typer's messages omit it.

    Of an option that is given more than once, the last value counts.
    """
    for index, word in reversed([*enumerate(sys.argv)]):
        if word == option and index + 1 < len(sys.argv):
            return sys.argv[index + 1]
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return ""
