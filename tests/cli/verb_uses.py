"""The verbs of the command line and their options, and words with which each verb would work."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from gossamer.cli.app import VERBS, invoke
from gossamer.errors import InputError
from tests.cli.command_line import save_network, save_photo
from tests.cli.train.small import LABELS, save_csv
from tests.detect.networks import save_detector

WRONG = {int: ["-1", "many"], float: ["much"], bool: ["=no"], str: ["absent/of no such name"]}
"""Values that no option of a type takes; whole numbers begin with 0 or 1, and a text names no file,
device, shape, class or setting."""
HELPERS = ("--help", "--install-completion", "--show-completion", "--version")


@pytest.fixture(autouse=True, scope="module")
def without_suites() -> Iterator[None]:
    """Test the verb `bench` as it is without the package of the benchmarks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(VERBS, "bench", replace(VERBS["bench"], extension=""))
        yield


def _leaves() -> dict[tuple[str, ...], Any]:
    """Return the command of each verb, and of each verb of a verb, by their names."""
    leaves = {}
    for name, verb in VERBS.items():
        command = replace(verb, extension="").command(name)
        inner = getattr(command, "commands", None)
        leaves.update({(name, verb): inner[verb] for verb in inner} if inner
                      else {(name,): command})
    return leaves


LEAVES = _leaves()
OPTIONS = [(words, parameter) for words, command in LEAVES.items()
           for parameter in command.params
           if parameter.opts[0].startswith("-")
           and parameter.opts[0] not in HELPERS]


def function_of(words: tuple[str, ...]) -> Any:
    """Return the function of a verb."""
    verb = VERBS[words[0]]
    return getattr(import_module(f"gossamer.cli.{verb.module or words[0]}"),
                   (verb.verbs or {})[words[1]] if words[1:] else verb.function or words[0])


def type_of(words: tuple[str, ...], parameter: Any) -> type:
    """Return the type that the verb's function takes for an option or argument."""
    hint = get_type_hints(function_of(words))[parameter.name]
    return next((kind for kind in (bool, int, float) if kind is hint or kind in get_args(hint)),
                str)


def working_words(folder: Path) -> dict[tuple[str, ...], list[object]]:
    """Save files, and return words with which each verb would work, without its options."""
    network, photo = save_network(folder / "n.onnx"), save_photo(folder / "p.png")
    samples, target = save_csv(folder / "s.csv", LABELS), folder / "target.onnx"
    detector = folder / "d.onnx"
    save_detector(detector, "yolox")
    (folder / "photos" / "0").mkdir(parents=True)
    save_photo(folder / "photos" / "0" / "p.png")
    host = ["--device", "host"]
    return {("devices",): [], ("inspect",): [network], ("run",): [network, photo, *host],
            ("evaluate",): [network, folder / "photos", *host],
            ("bench",): [network, *host], ("compile",): [network, *host],
            ("convert",): [network, "-o", target],
            ("detect",): [detector, photo, *host],
            ("advise",): [network, *host],
            ("serve",): [network, "--port", "0", *host],
            ("prune",): [network, "--sparsity", "0.5", "-o", target],
            ("train",): [samples, "-o", target, *host], ("cache", "list"): [],
            ("cache", "clear"): [], ("cache", "export"): [folder / "m.gossamer"],
            ("cache", "import"): [folder / "m.gossamer"]}


def wrong_words(words: tuple[str, ...], option: Any) -> list[list[str]]:
    """Return wrong uses of an option."""
    kind, name = type_of(words, option), option.opts[0]
    return [[f"{name}{value}"] if kind is bool else [name, value] for value in WRONG[kind]]


def usage(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process as the console script does, with its one-line
    errors."""
    stdout, stderr, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["gossamer", *map(str, words)]
    try:
        with redirect_stdout(stdout), redirect_stderr(stderr):
            try:
                code = invoke()
            except InputError as error:
                print("error:", error, file=sys.stderr)
                code = 2
            except SystemExit as stop:
                code = int(str(stop.code))
    finally:
        sys.argv = before
    return subprocess.CompletedProcess(words, code, stdout.getvalue(), stderr.getvalue())
