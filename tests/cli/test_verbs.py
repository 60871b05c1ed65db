"""The help of every verb, wrong uses of its options, and how errors are shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import gossamer
from gossamer.cli.app import VERBS
from tests.cli.command_line import fails, gossamer_cli, json_of, script, succeeds
from tests.cli.verb_uses import (
    LEAVES,
    OPTIONS,
    usage,
    without_suites,  # noqa: F401
    working_words,
    wrong_words,
)
from tests.processes import python


def _id(value: Any) -> str:
    return " ".join(value) if isinstance(value, tuple) else value.opts[0]


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
def test_a_wrong_use_of_each_option(words: tuple[str, ...], option: Any, tmp_path: Path) -> None:
    """The command does nothing, and says in one line which option or value is wrong."""
    arguments = working_words(tmp_path)[words]
    for given in wrong_words(words, option):
        result = usage(*words, *arguments, *given)
        assert result.returncode == 2, (given, result.stdout, result.stderr)
        (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert option.opts[0] in line or given[-1] in line
        assert not result.stdout


@pytest.mark.parametrize("words", LEAVES, ids=_id)
def test_an_option_that_is_none(words: tuple[str, ...]) -> None:
    result = usage(*words, "--nothing-like-it")
    assert result.returncode == 2 and not result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: no such option") and f"`gossamer {' '.join(words)}" in line


def test_the_list_of_verbs_says_what_their_help_says() -> None:
    shown = succeeds("-h").stdout
    for name, verb in VERBS.items():
        assert f"\n  {name} " in shown
        text = " ".join(succeeds(name, "-h").stdout.split())
        assert verb.help.rstrip(".") in text


def test_the_help_imports_nothing_heavy() -> None:
    code = ("import sys\nfrom gossamer.cli.app import invoke\nsys.argv = ['gossamer', '-h']\n"
            "try:\n    invoke()\nfinally:\n"
            "    print([name for name in ('numpy', 'scipy', 'onnx', 'PIL', 'rich.table') "
            "if name in sys.modules])")
    assert python(code).stdout.splitlines()[-1] == "[]"


def test_help_needs_no_extra() -> None:
    code = """
import re, sys, tomllib
from pathlib import Path
project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
def names(packages):
    return {re.match(r"[\\w-]+", each)[0].replace("-", "_") for each in packages}
extras = project["optional-dependencies"]
for extra in extras.keys() - {"dev"}:
    for name in names(extras[extra]) - names(project["dependencies"]) - {"gossamer"}:
        sys.modules[name] = None
from gossamer.cli.app import invoke
for verb in sys.argv[1].split():
    sys.argv = ["gossamer", verb, "--help"]
    try:
        invoke()
    except SystemExit as ended:
        assert not ended.code, verb
sys.argv = ["gossamer", "serve", "mobilenet_v2", "--device", "host", "--port", "0"]
invoke()"""
    process = subprocess.run([sys.executable, "-c", code, " ".join(VERBS)], capture_output=True,
                             text=True, check=False)
    assert process.stderr == ("error: serve needs the package fastapi: pip install '.[serve]' in "
                              "gossamer's checkout\n")


def test_short_options() -> None:
    assert succeeds("-V").stdout == succeeds("--version").stdout
    assert succeeds("-V").stdout.startswith("gossamer 0.")


def test_the_last_value_of_an_option_counts() -> None:
    assert "--batch many: " in script("run", "net", "--batch", "1", "--batch", "many").stderr


@pytest.mark.slow
def test_a_shell_completes_verbs_and_options() -> None:
    def completed(line: str) -> list[str]:
        given = {"COMP_WORDS": f"gossamer {line}", "COMP_CWORD": str(len(line.split()))}
        process = script(env={**os.environ, "_GOSSAMER_COMPLETE": "complete_bash", **given})
        return process.stdout.split()

    assert completed("ev") == ["evaluate"]
    assert completed("train --pat") == ["--patience"]
    assert completed("cache ex") == ["export"]


def test_devices():
    lines = succeeds("devices").stdout.splitlines()
    (host,) = [line for line in lines if line.startswith("host ")]
    assert host.split()[1] == "PASS"
    rows = json_of("devices")
    assert {row["name"] for row in rows} == {device.name for device in gossamer.devices()}
    keys = {"name", "description", "driver", "compute_units", "memory_bytes", "problem"}
    assert all(keys <= set(row) for row in rows)


def test_inspect(tiny):
    text = succeeds("inspect", tiny).stdout
    assert text.startswith("node") and "5 nodes" in text
    assert "first" in text and "133 parameters" in text
    summary = json_of("inspect", tiny, "--batch", 2)
    assert summary["parameters"] == 4 * 27 + 25
    assert summary["rows"][0]["flops"] >= 2 * 2 * 4 * 27 * 64


def failing(monkeypatch, error):
    monkeypatch.setattr(gossamer, "load", Mock(side_effect=error))


def test_ctrl_c(monkeypatch):
    failing(monkeypatch, KeyboardInterrupt())
    assert fails(130, "inspect", "x") == "error: interrupted"


def test_own_faults_are_named_as_such(monkeypatch):
    failing(monkeypatch, ZeroDivisionError("by nothing"))
    line = fails(1, "inspect", "x")
    assert "fault in gossamer" in line and "by nothing" in line and "GOSSAMER_DEBUG" in line


def test_tracebacks_only_when_asked_for(tmp_path):
    words = ("inspect", tmp_path / "absent.onnx")
    asked = gossamer_cli(*words, env={"GOSSAMER_DEBUG": "1"})
    assert asked.exit_code == 2 and "Traceback" in asked.stderr
    assert "Traceback" not in gossamer_cli(*words, env={"GOSSAMER_DEBUG": "0"}).stderr


def test_long_messages_are_cut_to_their_first_line(monkeypatch):
    failing(monkeypatch, gossamer.errors.CompileError("it does not build:\nline 1\nline 2"))
    assert fails(2, "inspect", "x") == (
        "error: it does not build: (GOSSAMER_DEBUG=1 shows the rest)")
