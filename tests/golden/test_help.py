"""The help of every verb: its words, options, defaults and bounds, in plain lines."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from typer.main import get_command

from gossamer.cli.app import VERBS, app
from tests.cli.verb_uses import LEAVES, function_of, type_of, without_suites  # noqa: F401
from tests.golden import Golden

WIDTH = 100


def test_help(golden: Golden) -> None:
    lines = ["gossamer", *wrapped(get_command(app).help or "", "  ")]
    for name, verb in VERBS.items():
        lines += wrapped(f"{name}: {verb.help}", "  ")
    for words, command in LEAVES.items():
        lines += ["", f"gossamer {' '.join(words)}"]
        for part in command.help.split("\n\n"):
            lines += wrapped(part, "  ")
        for parameter in command.params:
            if parameter.name in inspect.signature(function_of(words)).parameters:
                lines += parameter_lines(words, parameter)
    golden.text("help.txt", "\n".join(lines) + "\n")


def wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), WIDTH, initial_indent=indent,
                         subsequent_indent=f"{indent}    ", break_on_hyphens=False)


def parameter_lines(words: tuple[str, ...], parameter: Any) -> list[str]:
    """Return the lines of an option or an argument, in the same words with every version of
    typer."""
    function, kind = function_of(words), type_of(words, parameter)
    (info,) = get_type_hints(function, include_extras=True)[parameter.name].__metadata__
    names = ", ".join(each for each in parameter.opts if each.startswith("-"))
    names += "".join(f" / {each}" for each in parameter.secondary_opts)
    names += "" if kind is bool else f" {info.metavar or kind.__name__}"
    default = inspect.signature(function).parameters[parameter.name].default
    facts = "; ".join(facts_of(info, default))
    return wrapped(f"{names}{facts and f' [{facts}]'}: {info.help}", "  ")


def facts_of(info: Any, default: Any) -> Iterator[str]:
    """Yield the default of an option and the bounds of its value."""
    if default is inspect.Parameter.empty:
        yield "required"
    elif isinstance(info.show_default, str):
        yield f"default {info.show_default}"
    elif default is not None and default is not False:
        yield f"default {default}"
    for number, word in ((info.min, "from"), (info.max, "to")):
        if number is not None:
            yield f"{word} {number}"


def test_sections_of_a_table(tmp_path: Path) -> None:
    write, check = Golden(True, tmp_path), Golden(False, tmp_path)
    write.table("a.txt", "second", {"x": "1\n2", "y": "3"})
    write.table("a.txt", "first", {"z": ""})
    assert (tmp_path / "a.txt").read_text() == "## first\nz: \n\n## second\nx: 1\\n2\ny: 3\n\n"
    check.table("a.txt", "second", {"x": "1\n2", "y": "3"})
    check.table("a.txt", "first", {"z": ""})
    for rows, shown in (({"x": "1\n2"}, "-y: 3"), ({"x": "1\n2", "y": "4"}, r"\+y: 4"),
                        ({"x": "1\n2", "y": "3", "z": "5"}, r"\+z: 5")):
        with pytest.raises(pytest.fail.Exception, match=shown):
            check.table("a.txt", "second", rows)
