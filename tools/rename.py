"""Applies the map of tools/renames.toml: moves modules and files, and rewrites what names them.

Usage: `python tools/rename.py modules` moves files and rewrites imports; `python tools/rename.py
words [TABLE]` replaces identifiers by the table `words` or another. Each is one commit of its own.
It needs libcst and a git checkout.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, ScopeProvider

ROOT = Path(__file__).resolve().parents[1]
MAP = tomllib.loads(Path(__file__).with_name("renames.toml").read_text())
ROOTS = ("gossamer", "tests", "examples")


def tracked(*suffixes: str) -> list[Path]:
    """The files of the checkout that git tracks and whose names end so, but for committed rows."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True,
                           check=True).stdout.split("\0")
    return [ROOT / name for name in names if name.endswith(suffixes) and (ROOT / name).is_file()
            and not name.startswith(("benchmarks/results", "tools/"))]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def file_of(module: str) -> str:
    return module.replace(".", "/") + ".py"


class Modules:
    """The old names of modules and what they became."""

    def __init__(self) -> None:
        self.old = {module_of(path) for path in tracked(".py") if path.parts[-2:]}
        self.moved: dict[str, str] = dict(MAP["modules"])
        self.files: dict[str, str] = dict(MAP["files"])
        for old, new in MAP["tests"].items():
            self.files[old] = new
            if old.endswith(".py"):
                self.moved[old[:-3].replace("/", ".")] = new[:-3].replace("/", ".")
            else:
                prefix = old.replace("/", ".")
                for module in self.old:
                    if module == prefix or module.startswith(prefix + "."):
                        self.moved[module] = new.replace("/", ".") + module[len(prefix):]

    def home(self, package: str, name: str) -> tuple[str, str]:
        """Where `from package import name` is to import from now, and what it is called there."""
        full = f"{package}.{name}"
        if full in self.old:
            new = self.moved.get(full, full)
            return new.rpartition(".")[0], new.rpartition(".")[2]
        return self.moved.get(package, package), name

    def dotted(self, text: str) -> str:
        """A dotted name that begins with a module's old name, with the new one."""
        parts = text.split(".")
        for end in range(len(parts), 0, -1):
            prefix = ".".join(parts[:end])
            if prefix in self.old:
                return ".".join([self.moved.get(prefix, prefix), *parts[end:]])
        return text

    def moves(self) -> Iterator[tuple[str, str]]:
        yield from self.files.items()
        for old, new in MAP["modules"].items():
            source = file_of(old)
            if not (ROOT / source).exists():
                source = old.replace(".", "/") + "/__init__.py"
            moved_along = any(source.startswith(f"{folder}/") for folder in self.files)
            if (ROOT / source).exists() and not moved_along:
                yield source, file_of(new)


class Imports(cst.CSTTransformer):
    """Rewrites the imports of one file, and the names by which it uses moved modules."""

    METADATA_DEPENDENCIES = (ScopeProvider,)

    def __init__(self, modules: Modules, path: Path) -> None:
        super().__init__()
        self.modules, self.path = modules, path
        self.renamed: dict[int, str] = {}
        self.aliases: dict[str, str] = {}

    def visit_Module(self, node: cst.Module) -> None:
        names = _all_names(node)
        scopes = {self.get_metadata(ScopeProvider, each, None) for each in names}
        used = {each.value for each in names}
        for scope in filter(None, scopes):
            for assignment in scope.assignments:
                statement = getattr(assignment, "node", None)
                if not isinstance(statement, cst.ImportFrom) or statement.module is None:
                    continue
                package = _text(statement.module)
                if f"{package}.{assignment.name}" not in self.modules.old:
                    continue
                new = self.modules.home(package, assignment.name)[1]
                if new == assignment.name:
                    continue
                if new in used:
                    self.aliases[f"{package}.{assignment.name}"] = assignment.name
                    print(f"{self.path.relative_to(ROOT)}: {assignment.name} stays, as {new} is "
                          "used already")
                    continue
                for access in assignment.references:
                    self.renamed[id(access.node)] = new

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        new = self.renamed.get(id(original_node))
        return updated_node if new is None else updated_node.with_changes(value=new)

    def leave_SimpleStatementLine(
            self, original_node: cst.SimpleStatementLine,
            updated_node: cst.SimpleStatementLine) -> cst.BaseStatement | cst.FlattenSentinel:
        if len(original_node.body) != 1 or not isinstance(original_node.body[0], cst.ImportFrom):
            return updated_node
        statement = original_node.body[0]
        if statement.module is None or isinstance(statement.names, cst.ImportStar):
            return updated_node
        package = _text(statement.module)
        if package.split(".")[0] not in ROOTS:
            return updated_node
        homes: dict[str, list[str]] = {}
        for alias in statement.names:
            name = alias.name.value
            home, new = self.modules.home(package, str(name))
            asked = _text(alias.asname.name) if alias.asname else self.aliases.get(
                f"{package}.{name}")
            homes.setdefault(home, []).append(f"{new} as {asked}" if asked and asked != new
                                              else new)
        comment = original_node.trailing_whitespace.comment
        behind = f"  {comment.value}" if comment else ""
        lines = [cst.parse_statement(_import(home, names) + behind) for home, names
                 in homes.items()]
        lines[0] = lines[0].with_changes(leading_lines=original_node.leading_lines)
        return cst.FlattenSentinel(lines)


def _import(home: str, names: list[str]) -> str:
    line = f"from {home} import {', '.join(names)}"
    if len(line) <= 96:
        return line
    return f"from {home} import (\n" + "".join(f"    {name},\n" for name in names) + ")"


def _text(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


def _all_names(module: cst.Module) -> list[cst.Name]:
    found: list[cst.Name] = []

    class Collector(cst.CSTVisitor):
        def visit_Name(self, node: cst.Name) -> None:
            found.append(node)

    module.visit(Collector())
    return found


def move_modules() -> None:
    """Rewrites imports and dotted names, then moves the files."""
    modules = Modules()
    pattern = re.compile(r"\b(?:gossamer|tests)(?:\.[A-Za-z_]\w*)+")
    paths = {old: new for old, new in modules.moves()}
    longest = sorted(paths, key=len, reverse=True)
    named = re.compile("|".join(rf"(?<![\w/]){re.escape(path)}(?![\w])" for path in longest))
    for path in tracked(".py", ".md", ".toml", "Makefile", "run", ".cl", ".cu", ".h"):
        text = before = path.read_text()
        if path.suffix == ".py":
            wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
            text = wrapper.visit(Imports(modules, path)).code
            lines = [line if re.match(r"\s*from (gossamer|tests)[\w.]* import", line)
                     else pattern.sub(lambda match: modules.dotted(match[0]), line)
                     for line in text.split("\n")]
            text = "\n".join(lines)
        else:
            text = pattern.sub(lambda match: modules.dotted(match[0]), text)
        text = named.sub(lambda match: paths[match[0]], text)
        if text != before:
            path.write_text(text)
    for number, old in enumerate(paths):
        subprocess.run(["git", "mv", old, f".moving-{number}"], cwd=ROOT, check=True)
    for number, new in enumerate(paths.values()):
        (ROOT / new).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "mv", f".moving-{number}", new], cwd=ROOT, check=True)
    for folder in sorted({path.parent for path in tracked(".py")}):
        for parent in (folder, *folder.parents):
            if parent == ROOT or ROOT not in parent.parents:
                break
            init, name = parent / "__init__.py", str(parent.relative_to(ROOT))
            if name.split("/")[0] in ("gossamer", "tests") and not init.exists():
                says = MAP["packages"].get(name, "")
                init.write_text(f'"""{says}"""\n' if says else "")
                if name.startswith("gossamer") and not says:
                    print(f"{name} says nothing of itself")


def replace_words(table: str = "words") -> None:
    """Replaces the patterns of a table, one after another, in the files they are for."""
    files = [path for path in tracked(".py", ".md", ".cl", ".cu", ".h", ".c", ".toml", "Makefile")
             if path.name != "CHANGELOG.md"]
    texts = {path: path.read_text() for path in files}
    before = dict(texts)
    for entry in MAP[table]:
        globs = entry.get("files", "**").split()
        without = entry.get("without", "").split()
        pattern, count = re.compile(entry["old"], re.MULTILINE), 0
        for path in files:
            name = path.relative_to(ROOT)
            if not _matches(name, globs) or _matches(name, without):
                continue
            texts[path], made = pattern.subn(entry["new"], texts[path])
            count += made
        if not count:
            print(f"nothing matches {entry['old']} in {' '.join(globs)}")
    for path, text in texts.items():
        if text != before[path]:
            path.write_text(text)


def _matches(name: Path, globs: list[str]) -> bool:
    return any(re.fullmatch(re.escape(glob).replace(r"\*\*", ".*").replace(r"\*", "[^/]*"),
                            str(name)) for glob in globs)


if __name__ == "__main__":
    {"modules": move_modules, "words": replace_words}[sys.argv[1]](*sys.argv[2:])
