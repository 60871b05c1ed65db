"""The help of every verb, its options, and one wrong use of each of them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from typer.main import get_command

from gossamer.cli.app import app
from gossamer.cli.usage import invoke
from gossamer.cli.verbs import VERBS
from gossamer.errors import InputError
from tests.cli.command_line import save_network, save_photo, succeeds
from tests.cli.train.small import LABELS, save_csv
from tests.detect.networks import save_detector

WRONG = {int: ["-1", "many"], float: ["much"], bool: ["=no"]}
"""Values that no option of a type takes; whole numbers begin with 0 or 1."""
WRONG_TEXT = "absent/of no such name"
"""A value that names no file, device, shape, class or setting."""
FREE = {("bench", "--commit")}
"""Options that take any text."""
HELPERS = ("--help", "--install-completion", "--show-completion", "--version")


def _leaves() -> dict[tuple[str, ...], Any]:
    """Returns the command of each verb, and of each verb of a verb, by their names."""
    group = get_command(app)
    leaves = {}
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        inner = getattr(command, "commands", None)
        leaves.update({(name, verb): inner[verb] for verb in inner} if inner
                      else {(name,): command})
    return leaves


LEAVES = _leaves()
OPTIONS = [(words, parameter) for words, command in LEAVES.items()
           for parameter in command.params
           if parameter.opts[0].startswith("-")
           and parameter.opts[0] not in HELPERS and (words[0], parameter.opts[0]) not in FREE]


def _id(value: Any) -> str:
    return " ".join(value) if isinstance(value, tuple) else value.opts[0]


def _type(words: tuple[str, ...], option: Any) -> type:
    """Returns the type that the verb's function takes for an option."""
    verb = VERBS[words[0]]
    function = (verb.verbs or {})[words[1]] if words[1:] else verb.function
    hint = get_type_hints(getattr(import_module(f"gossamer.cli.{verb.module}"), function))[
        option.name]
    return next((kind for kind in (bool, int, float) if kind is hint or kind in get_args(hint)),
                str)


@pytest.fixture
def arguments(tmp_path: Path) -> dict[tuple[str, ...], list[object]]:
    """Words with which each verb would work, without its options."""
    network, photo = save_network(tmp_path / "n.onnx"), save_photo(tmp_path / "p.png")
    samples, target = save_csv(tmp_path / "s.csv", LABELS), tmp_path / "target.onnx"
    detector = tmp_path / "d.onnx"
    save_detector(detector, "yolox")
    (tmp_path / "photos" / "0").mkdir(parents=True)
    save_photo(tmp_path / "photos" / "0" / "p.png")
    host = ["--device", "host"]
    return {("devices",): [], ("inspect",): [network], ("run",): [network, photo, *host],
            ("evaluate",): [network, tmp_path / "photos", *host],
            ("bench",): ["gemm", "--case", "512", *host], ("compile",): [network, *host],
            ("convert",): [network, "-o", target],
            ("detect",): [detector, photo, *host],
            ("advise",): [network, *host],
            ("serve",): [network, "--port", "0", *host],
            ("prune",): [network, "--sparsity", "0.5", "-o", target],
            ("train",): [samples, "-o", target, *host], ("cache", "list"): [],
            ("cache", "clear"): [], ("cache", "export"): [tmp_path / "m.gossamer"],
            ("cache", "import"): [tmp_path / "m.gossamer"]}


@pytest.mark.parametrize("words", LEAVES, ids=_id)
def test_help(words: tuple[str, ...]) -> None:
    for option in ("--help", "-h"):
        text = succeeds(*words, option).stdout
        assert text.startswith("Usage: ") and "\n  -h, --help" in text
        for parameter in LEAVES[words].params:
            if parameter.opts[0].startswith("--"):
                assert parameter.opts[0] in text
                assert parameter.help and parameter.help.rstrip()[-1] in ".)", parameter.opts[0]


@pytest.mark.parametrize(("words", "option"), OPTIONS, ids=_id)
def test_a_wrong_use_of_each_option(words: tuple[str, ...], option: Any,
                                    arguments: dict[tuple[str, ...], list[object]]) -> None:
    """The command does nothing, and says in one line which option or value is wrong."""
    name, kind = option.opts[0], _type(words, option)
    for value in WRONG.get(kind, [WRONG_TEXT]):
        given = [f"{name}{value}"] if kind is bool else [name, value]
        result = usage(*words, *arguments[words], *given)
        assert result.returncode == 2, (given, result.stdout, result.stderr)
        (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert name in line or value in line
        assert not result.stdout


@pytest.mark.parametrize("words", LEAVES, ids=_id)
def test_an_option_that_is_none(words: tuple[str, ...]) -> None:
    result = usage(*words, "--nothing-like-it")
    assert result.returncode == 2 and not result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: no such option") and f"`gossamer {' '.join(words)}" in line


def usage(*words: object) -> subprocess.CompletedProcess[str]:
    """Runs the command line in this process as the console script does, with its one-line
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


def _script(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "gossamer", *words], capture_output=True,
                          text=True, env={**os.environ, **environment}, check=False)


def test_the_list_of_verbs_says_what_their_help_says() -> None:
    shown = succeeds("-h").stdout
    for name, verb in VERBS.items():
        assert f"\n  {name} " in shown
        text = " ".join(succeeds(name, "-h").stdout.split())
        assert verb.help.rstrip(".") in text


def test_the_help_imports_nothing_heavy() -> None:
    code = ("import sys\nfrom gossamer.cli.usage import invoke\nsys.argv = ['gossamer', '-h']\n"
            "try:\n    invoke()\nfinally:\n"
            "    print([name for name in ('numpy', 'scipy', 'onnx', 'PIL', 'rich.table') "
            "if name in sys.modules])")
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                             check=True)
    assert process.stdout.splitlines()[-1] == "[]"


def test_short_options() -> None:
    assert succeeds("-V").stdout == succeeds("--version").stdout


@pytest.mark.slow
def test_a_shell_completes_verbs_and_options() -> None:
    def completed(line: str) -> list[str]:
        process = _script(_GOSSAMER_COMPLETE="complete_bash", COMP_WORDS=f"gossamer {line}",
                          COMP_CWORD=str(len(line.split())))
        return process.stdout.split()

    assert completed("ev") == ["evaluate"]
    assert completed("train --pat") == ["--patience"]
    assert completed("cache ex") == ["export"]
