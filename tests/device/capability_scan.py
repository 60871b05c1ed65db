"""Finds code that decides by what a device is, where it should ask what the device can do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

_DEVICE_WORDS = re.compile(r"(^|_)(device|gpu|buffer|workspace)$")
_CLASSES = re.compile(r"^(Host|OpenCL|Cuda)(Device|Buffer|Kernel)$")
_STRING_METHODS = ("startswith", "endswith", "lower", "partition", "split")
_IGNORED = re.compile(r"type: ignore\[[^]]*attr-defined")


def found(text: str) -> Iterator[tuple[int, str]]:
    """Yields the number and the text of each line that decides by a device's api, looks for an
    attribute that devices or buffers may lack, asks for the class of one, or hides its type."""
    lines = text.splitlines()
    numbers = {number for number, line in enumerate(lines, 1) if _IGNORED.search(line)}
    for node in ast.walk(ast.parse(text)):
        if _decides(node) or _looks_for_an_attribute(node) or _hides_a_type(node):
            numbers.add(node.lineno)
    for number in sorted(numbers):
        yield number, lines[number - 1].strip()


def _decides(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        return any(map(_is_api, sides)) and any(map(_names, sides))
    if isinstance(node, ast.Match):
        return _is_api(node.subject)
    if isinstance(node, ast.Subscript):
        return _is_attribute(node.slice)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return ((node.func.attr in _STRING_METHODS and _is_api(node.func.value))
                or (node.func.attr == "get" and any(map(_is_attribute, node.args))))
    return False


def _looks_for_an_attribute(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
        return False
    if node.func.id in ("hasattr", "getattr"):
        return _DEVICE_WORDS.search(ast.unparse(node.args[0]).rpartition(".")[2]) is not None
    return node.func.id in ("isinstance", "cast") and any(
        _CLASSES.match(name.strip("'\"").rpartition(".")[2])
        for argument in node.args for name in re.split(r"[^\w.'\"]+", ast.unparse(argument)))


def _hides_a_type(node: ast.AST) -> bool:
    if isinstance(node, ast.arg):
        name, annotation = node.arg, node.annotation
    elif isinstance(node, ast.AnnAssign):
        name, annotation = ast.unparse(node.target), node.annotation
    else:
        return False
    return (annotation is not None and ast.unparse(annotation) == "Any"
            and _DEVICE_WORDS.search(name) is not None and name != "jax_device")


def _is_api(node: ast.AST) -> bool:
    return _is_attribute(node) or (isinstance(node, ast.Name) and node.id == "api")


def _is_attribute(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "api"


def _names(node: ast.AST) -> bool:
    items = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return any(isinstance(item, ast.Constant) and isinstance(item.value, str) for item in items)
