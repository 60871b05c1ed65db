"""Names that were given up stay given up, in code, documents and output."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from gossamer.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
GONE = tomllib.loads((ROOT / "tools" / "renames.toml").read_text())["gone"]
SUFFIXES = (".py", ".md", ".toml", ".cl", ".cu", ".h", ".c", ".cpp", ".sh", "Makefile")


def _files() -> list[Path]:
    """The files that git knows or would add, less those that are about the past."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
        capture_output=True, text=True, check=True).stdout.split("\0")
    return [ROOT / name for name in names
            if name.endswith(SUFFIXES) and (ROOT / name).is_file()
            and not name.startswith(tuple(GONE["history"]))]


def _found(text: str) -> list[str]:
    # the pattern begins with a boundary, so that within a word no alternative is tried
    return re.findall(rf"(?<![\w-])(?:{'|'.join(GONE['words'])})(?![\w-])", text)


def _allowed(path: Path, word: str) -> bool:
    return str(path.relative_to(ROOT)) in GONE["allowed"].get(word.lower(), ())


def test_the_words_are_found_where_they_stand() -> None:
    assert _found("a kernel with local_bytes in local memory, by scouts") == [
        "local_bytes", "local memory", "scouts"]
    assert _found("shared_bytes, work_group_size and candidates") == []


def test_no_file_has_an_old_word() -> None:
    lines = [f"{path.relative_to(ROOT)}:{number}: {', '.join(words)}"
             for path in _files()
             for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
             if (words := [word for word in _found(line) if not _allowed(path, word)])]
    assert not lines, "\n".join(lines)


def test_no_old_module_is_named() -> None:
    tables = tomllib.loads((ROOT / "tools" / "renames.toml").read_text())
    modules = {name for name in tables["modules"]
               if not (ROOT / name.replace(".", "/")).is_dir()
               and not (ROOT / f"{name.replace('.', '/')}.py").is_file()}
    pattern = re.compile("|".join(rf"(?<![\w.]){re.escape(name)}(?![\w])"
                                  for name in sorted(modules, key=len, reverse=True)))
    texts = {path: path.read_text(encoding="utf-8") for path in _files()}
    lines = [f"{path.relative_to(ROOT)}: {match[0]}" for path, text in texts.items()
             if any(name in text for name in modules) for match in pattern.finditer(text)]
    assert modules and not lines, "\n".join(lines)


def _verbs(command: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    below = getattr(command, "commands", {})
    return [path, *(verb for name, other in below.items() for verb in _verbs(other, (*path, name)))]


@pytest.mark.parametrize("arguments", [
    *((*verb, "--help") for verb in _verbs(typer.main.get_command(app))),
    ("devices",), ("devices", "--json"),
], ids=" ".join)
def test_no_output_has_an_old_word(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0 and result.output and not _found(result.output)
