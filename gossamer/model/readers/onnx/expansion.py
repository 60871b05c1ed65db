"""Refuses ONNX files with which the onnx package or ONNX Runtime would be busy without end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import onnx

from gossamer.errors import ModelError, quoted
from gossamer.model.readers.onnx.order import source

MOST_EXPANDED = 2**14
"""The most nodes that a file may gain when the nodes of its functions take the places of their
calls. ONNX Runtime expands so many nodes within 5 s on one core, and twice as many take more than
twice as long."""
MOST_NESTED = 100
"""The most functions that may call one another in a row, as they call each other recursively in
the onnx package."""

_Key = tuple[str, str, str]
"""Domain, name and overload of a function."""


def check_expansion(model: onnx.ModelProto, file: str) -> None:
    """Raises ModelError where the functions of a file expand to too many nodes, or call themselves,
    or where an equation of Einsum would not end the shape inference of the onnx package."""
    functions = {(each.domain, each.name, getattr(each, "overload", "")): list(_all(each.node))
                 for each in model.functions}
    nodes = list(_all(model.graph.node))
    added = _Expansion(functions, file).number(nodes, ()) - len(nodes)
    if added > MOST_EXPANDED:
        raise ModelError(f"{file}: the calls of its functions expand to {quoted(added)} nodes, the "
                         f"limit is {MOST_EXPANDED}; where that is meant, expand them with "
                         "onnx.inliner.inline_local_functions(model)")
    defaults = [attribute for each in model.functions for attribute in each.attribute_proto]
    _check_equations([*nodes, *(node for body in functions.values() for node in body)],
                     functions, defaults, file)


class _Expansion:
    """Counts nodes as if each call of a function were replaced by the function's nodes."""

    def __init__(self, functions: Mapping[_Key, Iterable[onnx.NodeProto]], file: str) -> None:
        self._functions = functions
        self._file = file
        self._numbers: dict[_Key, int] = {}

    def number(self, nodes: Iterable[onnx.NodeProto], callers: tuple[_Key, ...]) -> int:
        """Returns the number of nodes. callers: the functions whose nodes these are, outermost
        first. Raises ModelError for functions that call themselves or are nested too deeply."""
        total = 0
        for node in nodes:
            key = _key(node)
            if key not in self._functions:
                total += 1
                continue
            if key in callers or len(callers) == MOST_NESTED:
                what = ("calls itself" if key in callers else
                        f"is called by more than {MOST_NESTED} functions in a row, the limit")
                raise ModelError(f"{self._file}: the function {quoted(key[1])} {what}; export the "
                                 "model without functions")
            if key not in self._numbers:
                self._numbers[key] = self.number(self._functions[key], (*callers, key))
            total += self._numbers[key]
        return total


def _check_equations(nodes: Iterable[onnx.NodeProto], functions: Mapping[_Key, object],
                     defaults: Iterable[onnx.AttributeProto], file: str) -> None:
    """Raises ModelError where a term of an equation has more dots than one "...". Texts that
    functions get may be equations."""
    texts = [(source(node), attribute) for node in nodes for attribute in node.attribute
             if _key(node) in functions
             or (node.op_type == "Einsum" and attribute.name == "equation")]
    texts += [("a function", attribute) for attribute in defaults]
    for where, attribute in texts:
        text = attribute.s.decode(errors="replace")
        if any(term.count(".") > 3 for term in re.split(",|->", text)):
            raise ModelError(f"{file}: {where}: {attribute.name} {quoted(text)} has a term with "
                             "more dots than one '...', expected letters and one '...' at most")


def _key(node: onnx.NodeProto) -> _Key:
    return node.domain, node.op_type, getattr(node, "overload", "")


def _all(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yields nodes, and the nodes of the graphs within them."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _all(attribute.g.node)
            for graph in attribute.graphs:
                yield from _all(graph.node)
