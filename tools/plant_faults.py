"""Mutation tests: plants faults, and reports which a command finds.

    python tools/plant_faults.py --count 30 --seed 0 -- make quick

A fault is a flipped comparison, a dropped term, or a bound that is off by one. Faults are drawn at
random from all files of the package, in equal numbers of each kind. They are written in a form that
breaks no rule of style. Two groups are excluded: files that import a library that is not installed,
such as PyTorch, because their tests do not run here; and cost models of algorithms, because their
faults change only the order in which candidates are measured.

The command runs in a temporary copy of the checkout, with one fault at a time. It has found the
fault if it fails, or if it needs several times as long as without a fault. Without a fault, it must
pass. The last line is the number of faults that were found. The exit status is 1 if there are fewer
than --least.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SLOWER = 4.0
"""Time limit of the command, relative to its time without a fault."""
LONGEST = 100
"""Largest number of characters in a line."""
TIME_MODELS = re.compile("cost|cycles|expected")
"""Matches the names of cost models in gossamer/ops."""
OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}


@dataclass(frozen=True)
class Fault:
    """A change of one expression in a file."""

    kind: str
    path: Path
    """The file, within the checkout."""
    line: int
    """The first line of the expression, from 1 on."""
    start: int
    """The offset in bytes of the expression's start."""
    end: int
    """The offset in bytes of the expression's end."""
    new: str
    """The expression that replaces it."""
    function: str
    """The name of the enclosing function; empty outside functions."""

    def planted(self, content: bytes) -> bytes:
        """Return the file's content with the fault.

        Redundant parentheses and long lines are avoided, so that linters do not find the fault.
        """
        forms = [content[:self.start] + form.format(self.new).encode() + content[self.end:]
                 for form in ("({})", "{}", "\n{}", "(\n{})")]
        meaning = _meaning(forms[0])
        for form in (forms[1], forms[0], *forms[2:]):
            if max(map(len, form.splitlines())) <= LONGEST and _meaning(form) == meaning:
                return form
        return forms[0]

    def describe(self, content: bytes) -> str:
        """Return text with the file, the line and both expressions."""
        old = re.sub(r"\s+", " ", content[self.start:self.end].decode())
        return f"{self.path}:{self.line}: {self.kind}: {old} -> {self.new}"


def _meaning(content: bytes) -> str:
    """Return the syntax tree of a file as text; "" if it is not valid Python."""
    try:
        return ast.dump(ast.parse(content))
    except SyntaxError:
        return ""


def faults_of(path: Path, content: bytes) -> Iterator[Fault]:
    """Yield every fault that can be planted in a file."""
    tree = ast.parse(content)
    starts = [0]
    for line in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, function in _expressions(tree):
        for kind, new in _changes(node):
            yield Fault(kind, path, node.lineno, starts[node.lineno - 1] + node.col_offset,
                        starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0),
                        ast.unparse(new), function)


def _expressions(node: ast.AST, function: str = "") -> Iterator[tuple[ast.expr, str]]:
    """Yield expressions below a node, with their functions' names.

    Excluded are annotations, tests of `__name__`, and expressions within f-strings, which have no
    positions in Python 3.11.
    """
    if isinstance(node, ast.FunctionDef):
        function = node.name
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr):
                continue
            if isinstance(child, ast.Compare) and "__name__" in ast.unparse(child):
                continue
            if isinstance(child, ast.expr):
                yield child, function
            yield from _expressions(child, function)


def _changes(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield an expression's faults: kinds and new expressions."""
    if isinstance(node, ast.Compare):
        if len(node.ops) == 1:
            yield "comparison flipped", ast.Compare(
                node.left, [OPPOSITE[type(node.ops[0])]()], node.comparators)
        for index, bound in enumerate(node.comparators):
            if _is_number(bound):
                others = list(node.comparators)
                others[index] = _one_more(bound)
                yield "bound off by one", ast.Compare(node.left, node.ops, others)
    elif isinstance(node, ast.BoolOp):
        for index in range(len(node.values)):
            rest = [*node.values[:index], *node.values[index + 1:]]
            yield "term dropped", rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
        # dropping half of a text is no fault of arithmetic
        if not any(isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant)
                                                       and isinstance(side.value, str))
                   for side in (node.left, node.right)):
            yield "term dropped", node.left
    elif isinstance(node, ast.Subscript):
        part = node.slice
        if isinstance(part, ast.Slice):
            for name in ("lower", "upper"):
                bound = getattr(part, name)
                if bound is not None:
                    moved = ast.Slice(part.lower, part.upper, part.step)
                    setattr(moved, name, _one_more(bound))
                    yield "bound off by one", ast.Subscript(node.value, moved, node.ctx)
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "range" and node.args:
        last = min(len(node.args), 2) - 1
        if not isinstance(node.args[last], ast.Starred):
            moved_args = list(node.args)
            moved_args[last] = _one_more(node.args[last])
            yield "bound off by one", ast.Call(node.func, moved_args, node.keywords)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _one_more(node: ast.expr) -> ast.expr:
    return ast.BinOp(node, ast.Add(), ast.Constant(1))


def can_be_found(fault: Fault) -> bool:
    """Return whether a test that runs here can find the fault."""
    models_time = fault.path.parts[1] == "ops" and TIME_MODELS.search(fault.function)
    return not models_time and all(map(_is_installed, imported(
        (ROOT / fault.path).read_bytes())))


def imported(content: bytes) -> set[str]:
    """Return the libraries that a file imports at its top.

    Imports for type checking are included.
    """
    names: set[str] = set()
    statements: list[ast.stmt] = list(ast.parse(content).body)
    while statements:
        statement = statements.pop()
        if isinstance(statement, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            names.add(statement.module.partition(".")[0])
        elif isinstance(statement, ast.If):
            statements += statement.body
    return names


@cache
def _is_installed(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def draw(count: int, seed: int) -> list[Fault]:
    """Draw `count` different faults, of each kind in turn."""
    by_kind: dict[str, list[Fault]] = {}
    for path in sorted((ROOT / "gossamer").rglob("*.py")):
        for fault in faults_of(path.relative_to(ROOT), path.read_bytes()):
            by_kind.setdefault(fault.kind, []).append(fault)
    rng = random.Random(seed)
    for faults in by_kind.values():
        rng.shuffle(faults)
    drawn = [filter(can_be_found, by_kind[kind]) for kind in sorted(by_kind)]
    return [next(drawn[index % len(drawn)]) for index in range(count)]


def copied(target: Path) -> None:
    """Copy the files of the checkout that git does not ignore.

    Links are made to its .venv, and to the folder `shared` next to the checkout.
    """
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                           cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    for source, link in ((ROOT / ".venv", target / ".venv"),
                         (ROOT.parent / "shared", target.parent / "shared")):
        if source.exists() and not link.exists():
            link.symlink_to(source.resolve())


def passes(command: list[str], folder: Path, seconds: float | None) -> bool | None:
    """Return whether a command passes in a folder; None for timeout."""
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)},
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               start_new_session=True)
    try:
        return process.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=30, help="number of faults (default: 30)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults (default: 0)")
    parser.add_argument("--least", type=int, default=0,
                        help="number of faults that must be found (default: 0)")
    parser.add_argument("command", nargs="+", help="command to run, after --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gossamer-faults-") as name:
        folder = Path(name) / "checkout"
        copied(folder)
        start = time.monotonic()
        if not passes(options.command, folder, None):
            sys.exit(f"{' '.join(options.command)} fails without a fault")
        alone_s = time.monotonic() - start
        print(f"without a fault: passes in {alone_s:.0f} s", flush=True)
        found = 0
        for fault in draw(options.count, options.seed):
            content = (ROOT / fault.path).read_bytes()
            (folder / fault.path).write_bytes(fault.planted(content))
            start = time.monotonic()
            result = passes(options.command, folder, SLOWER * alone_s + 60)
            (folder / fault.path).write_bytes(content)
            found += not result
            text = {True: "missed", False: "found", None: "found by timeout"}[result]
            print(f"{text} ({time.monotonic() - start:.0f} s): {fault.describe(content)}",
                  flush=True)
    print(f"{found} of {options.count} found")
    return int(found < options.least)


if __name__ == "__main__":
    sys.exit(main())
