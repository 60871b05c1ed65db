"""The names, packages and imports of the project are as docs/architecture.md states them."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import gossamer

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "gossamer"
PAGE = (ROOT / "docs" / "architecture.md").read_text()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Returns the modules of gossamer that a file imports, within functions too."""
    names = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "gossamer":
            names.update(f"gossamer.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name for name in names if name.startswith("gossamer.")}


def imported_packages(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imported(path)}


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def test_every_package_is_in_both_tables() -> None:
    names = {path.name.removesuffix(".py") for path in PACKAGE.iterdir()
             if path.suffix == ".py" or (path / "__init__.py").exists()}
    names -= {"__init__", "__main__"}
    listed = set(re.findall(r"`gossamer/(\w+)(?:/|\.py)`", section("Packages")))
    assert names <= listed, names - listed
    listed = set(re.findall(r"`(\w+)`", "\n".join(
        line.split(" | ")[0] for line in section("Imports run one way").splitlines()
        if line.startswith("| `"))))
    assert names == listed, names ^ listed


def test_imports_run_as_the_table_says() -> None:
    rows = re.findall(r"^\| (`[\w`, ]+`) \| (.*) \|$", section("Imports run one way"), re.MULTILINE)
    ground = set(re.findall(r"`(\w+)`", rows[0][0]))
    allowed: dict[str, set[str]] = {name: set() for name in ground}
    for packages, imports in rows[1:]:
        names = set(re.findall(r"`(\w+)`", imports))
        names |= ground if "the base modules" in imports else set()
        for package in re.findall(r"`(\w+)`", packages):
            allowed[package] = set(allowed) if imports == "all of these" else names
    wrong = []
    for path in modules():
        package = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if package in allowed:
            wrong += [f"{path.relative_to(ROOT)} imports {other}"
                      for other in imported_packages(path) & {*allowed} - allowed[package]
                      - {package}]
    assert not wrong
    assert len(allowed) >= 14


def test_the_package_does_without_its_benchmarks() -> None:
    imports = re.compile(r"^\s*(from|import) gossamer_bench", re.MULTILINE)
    assert not [path for path in modules() if imports.search(path.read_text())]


def test_packages_of_plan_import_levels_below() -> None:
    levels = {"lower": 0, "store": 0, "run": 1, "tune": 2, "choose": 3, "report": 4}
    wrong = []
    for package, level in levels.items():
        for path in (PACKAGE / "plan" / package).rglob("*.py"):
            wrong += [f"{path.relative_to(ROOT)} imports {name}" for name in imported(path)
                      if (parts := name.split("."))[1] == "plan" and len(parts) > 2
                      and levels.get(parts[2], -1) >= level and parts[2] != package]
    assert not wrong


def test_public_names_are_listed() -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith("| `gossamer/__init__.py`"))
    listed = set(re.findall(r"`(\w+)`", row.split(" | ")[1]))
    assert listed == {name for name in gossamer.__all__
                      if not name.endswith(("Error", "Warning"))}


def named_in(page: str) -> Iterator[str]:
    """Yields the names of Python that a page has in code, but for those of packages."""
    text = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    for name in re.findall(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`", text):
        if not name.startswith("gossamer."):
            yield name


@cache
def members() -> dict[str, set[str]]:
    """Returns the names that each class of gossamer defines, and the names of its bases."""
    found: dict[str, set[str]] = {}
    for path in modules():
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.ClassDef):
                continue
            names = found.setdefault(node.name, set())
            names.update(ast.unparse(base).split("[")[0].rpartition(".")[2] for base in node.bases)
            for part in ast.walk(node):
                if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                    names.add(part.name)
                elif isinstance(part, ast.AnnAssign | ast.Assign):
                    targets = part.targets if isinstance(part, ast.Assign) else [part.target]
                    names.update(getattr(target, "attr", None) or getattr(target, "id", "")
                                 for target in targets)
    return found


def has(cls: str, member: str) -> bool:
    """Returns whether a class or one of its bases defines a member."""
    names = members().get(cls, set())
    return member in names or any(has(base, member) for base in names
                                  if base in members() and base != cls)


@cache
def identifiers() -> set[str]:
    """Returns every word of the package's Python and kernels."""
    files = [*modules(), *PACKAGE.rglob("*.h"), *PACKAGE.rglob("*.cl"), *PACKAGE.rglob("*.cu")]
    return {word for path in files for word in re.findall(r"\w+", path.read_text())}


def test_members_of_classes_exist() -> None:
    pairs = [name.split(".") for name in named_in(PAGE) if name.count(".") == 1]
    pairs = [pair for pair in pairs if pair[0][0].isupper()]
    assert len(pairs) > 20
    assert not [".".join(pair) for pair in pairs if not has(*pair)]


def test_names_of_functions_and_classes_exist() -> None:
    names = {name for name in named_in(PAGE) if "." not in name}
    files = {path.name.removesuffix(".py") for path in PACKAGE.rglob("*")}
    assert len(names) > 100
    assert not names - identifiers() - files


def test_scripts_import_what_there_is() -> None:
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts)
             for folder in ("tests/bulk", "tests/networks", "tools")
             for path in (ROOT / folder).glob("[a-z]*.py")]
    for module in names:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            assert not (error.name or "").startswith(("gossamer.", "tests.", "tools.")), module
