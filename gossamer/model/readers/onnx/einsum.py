"""The converter of Einsum to transposes, matrix products and sums."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence

import numpy as np

from gossamer.expression import apply
from gossamer.model.opset.definition import Shape
from gossamer.model.readers.onnx.node import Converter, OnnxNode
from gossamer.model.readers.onnx.value_types import OTHER_SIZES, Probe

Term = str
"""The dimensions of a value, one letter each."""


def _einsum(node: OnnxNode) -> None:
    """Convert Einsum.

    The inputs of an Einsum are multiplied one after another. The sum over a dimension is computed
    as soon as neither the result nor a later input has this dimension.
    """
    values = [node.required(index) for index in range(len(node.inputs))]
    shapes = [node.integers.probe.shape(value) for value in values]
    terms, result = _parsed(node, shapes)
    for index, letters in enumerate(_broadcast(node, node.integers.probe, values, terms, shapes)):
        if letters:
            axes = tuple(map(terms[index].index, letters))
            values[index] = _without(node, values[index], axes, f"squeezed_{index}")
            terms[index] = "".join(each for each in terms[index] if each not in letters)
    value, term = values[0], terms[0]
    for index in range(1, len(terms)):
        later = set(result).union(*terms[index + 1:])
        value, term = _Product(node, index, later).of((value, term), (values[index], terms[index]))
    value, term = _summed(node, value, term, result, "last")
    _moved(node, value, term, result, None)


def _parsed(node: OnnxNode, shapes: Sequence[Shape | None]) -> tuple[list[Term], Term]:
    """Return the dimensions of each input, and of the result.

    shapes: the shapes of the inputs, None if unknown.
    Raises ModelError for an equation that does not match the node, and UnsupportedError for one
    that gossamer does not compute.
    """
    equation = node.attribute("equation")
    if not equation:
        raise node.error("attribute equation is missing")
    text = equation.replace(" ", "")
    left, arrow, result = text.partition("->")
    terms = left.split(",")
    if not arrow:
        letters = left.replace(",", "").replace(".", "")
        result = "..." * ("..." in left) + "".join(
            sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    if len(terms) != len(node.inputs):
        raise node.error(f"equation {equation!r} has {len(terms)} inputs, the node has "
                         f"{len(node.inputs)}")
    if "..." in left:
        terms, result = _spelled_out(node, terms, result, shapes)
    for term in (*terms, result):
        if any(not letter.isalpha() for letter in term) or len(set(term)) < len(term):
            raise node.unsupported(f"equation {equation!r} has the term {term!r}; gossamer "
                                   "computes terms in which each letter occurs once")
    if not set(result) <= set("".join(terms)):
        raise node.error(f"equation {equation!r} has letters in its result that no input has")
    return terms, result


def _spelled_out(node: OnnxNode, terms: Sequence[Term], result: Term,
                 shapes: Sequence[Shape | None]) -> tuple[list[Term], Term]:
    """Return terms with letters instead of ellipses.

    If ellipses stand for different numbers of dimensions, they are aligned at the last dimension.
    Raises UnsupportedError if a number of dimensions is unknown, or if the result has no ellipsis.
    """
    counts = []
    for term, shape in zip(terms, shapes, strict=True):
        if shape is None and "..." in term:
            raise node.unsupported(f"has the term {term!r} for a value with a number of dimensions "
                                   "that gossamer does not know")
        counts.append(len(shape) - len(term) + 3 if shape is not None and "..." in term else 0)
    free = "".join(letter for letter in string.ascii_letters if letter not in "".join(terms))
    most = max(counts)
    if min(counts) < 0 or most > len(free) or (most and "..." not in result):
        raise node.unsupported(f"has terms {', '.join(terms)} -> {result}, which do not fit shapes "
                               f"{' and '.join(str(list(shape or ())) for shape in shapes)}")
    return ([term.replace("...", free[most - count:most])
             for term, count in zip(terms, counts, strict=True)],
            result.replace("...", free[:most]))


def _broadcast(node: OnnxNode, probe: Probe, values: Sequence[str], terms: Sequence[Term],
               shapes: Sequence[Shape | None]) -> list[Term]:
    """Return, for each input, the letters of its dimensions that are broadcast.

    A broadcast dimension has size 1 in this input, whatever the sizes of the network's inputs, and
    another size in another input.
    """
    sizes = [dict(zip(term, shape or (), strict=False))
             for term, shape in zip(terms, shapes, strict=True)]
    others: list[dict[str, int]] | None = None
    found: list[Term] = []
    for index, value in enumerate(values):
        rest = [other for other in range(len(values)) if other != index]
        ones = [letter for letter in terms[index] if sizes[index].get(letter) == 1 and any(
            sizes[other].get(letter, 1) != 1 or (
                letter in sizes[other] and value in node.graph.constants
                and values[other] not in node.graph.constants) for other in rest)]
        if ones and value not in node.graph.constants and not probe.is_only_size:
            if others is None:
                at_other_sizes = Probe(node.graph, **OTHER_SIZES)
                at_other_sizes.add(node.graph.nodes)
                others = [dict(zip(term, at_other_sizes.shape(name) or (), strict=False))
                          for term, name in zip(terms, values, strict=True)]
            ones = [letter for letter in ones if others[index].get(letter) == 1]
        found.append("".join(ones))
    return found


def _without(node: OnnxNode, value: str, axes: tuple[int, ...], role: str) -> str:
    """Emit a value without some dimensions of size 1. Constants stay constants."""
    if value in node.graph.constants:
        return node.add_constant(np.squeeze(node.graph.constants[value], axes), role)
    return node.emit("squeeze", [value], role, axes=axes)


class _Product:
    """The product of two values of an Einsum.

    index: number of the second value, for names.
    later: the dimensions that the product keeps, because the Einsum's result or a later value has
    them.
    """

    def __init__(self, node: OnnxNode, index: int, later: Iterable[str]) -> None:
        self._node = node
        self._index = index
        self._later = frozenset(later)

    def of(self, a: tuple[str, Term], b: tuple[str, Term]) -> tuple[str, Term]:
        """Emit the product of two values, each a pair of its name and its dimensions.

        Returns the name and the dimensions of the product.
        """
        a, b = ((name, *_summed(self._node, name, term, self._later.union(other),
                                self._role(f"sum{side}")))[1:]
                for side, ((name, term), other) in enumerate(((a, b[1]), (b, a[1]))))
        both = [letter for letter in a[1] if letter in b[1]]
        kept = "".join(letter for letter in both if letter in self._later)
        summed = "".join(letter for letter in both if letter not in self._later)
        left, right = ("".join(letter for letter in term if letter not in both)
                       for term in (a[1], b[1]))
        if summed:
            return self._matrices(a, b, kept, left, summed, right), kept + left + right
        return self._elements(a, b, kept, left, right), kept + left + right

    def _role(self, name: str) -> str:
        return f"{name}_{self._index}"

    def _matrices(self, a: tuple[str, Term], b: tuple[str, Term], kept: Term, left: Term,
                  summed: Term, right: Term) -> str:
        """Emit matrix products (left, summed) x (summed, right), batched over `kept`.

        Several letters in `left`, `summed` or `right` are merged into one dimension of the matrix.
        """
        node = self._node
        x = _moved(node, *a, kept + left + summed, self._role("a"))
        y = _moved(node, *b, kept + summed + right, self._role("b"))
        # without `kept`, the right value is a single matrix, so the left value may keep several
        # dimensions of rows
        rows = [left] if kept or not left else list(left)
        if [len(group) for group in (*rows, summed, right)] != [1] * (len(rows) + 2):
            x = _regrouped(node, [x], [kept + left + summed], [*kept, *rows, summed],
                           self._role("rows"))
            y = _regrouped(node, [y], [kept + summed + right], [*kept, summed, right],
                           self._role("columns"))
            product = node.emit("matmul", [x, y], self._role("matrices"))
            return _regrouped(node, [product, a[0], b[0]], ["", a[1], b[1]],
                              [*kept, *left, *right], self._role("product"))
        return node.emit("matmul", [x, y], self._role("product"))

    def _elements(self, a: tuple[str, Term], b: tuple[str, Term], kept: Term, left: Term,
                  right: Term) -> str:
        """Emit element-wise products, without sums."""
        node = self._node
        x = _moved(node, *a, kept + left, self._role("a"))
        y = _moved(node, *b, kept + right, self._role("b"))
        if right:
            axes = range(len(kept + left), len(kept + left + right))
            x = node.emit("unsqueeze", [x], self._role("rows"), axes=tuple(axes))
        if left:
            axes = range(len(kept), len(kept + left))
            y = node.emit("unsqueeze", [y], self._role("columns"), axes=tuple(axes))
        return node.emit("elementwise", [x, y], self._role("product"), expression=apply("mul"))


def _summed(node: OnnxNode, value: str, term: Term, kept: Iterable[str], role: str
            ) -> tuple[str, Term]:
    """Emit the sum of a value over the dimensions that are not in `kept`.

    Returns the name and the dimensions of the sum.
    """
    axes = tuple(axis for axis, letter in enumerate(term) if letter not in kept)
    if not axes:
        return value, term
    left = "".join(letter for letter in term if letter in kept)
    return node.emit("reduce", [value], role, kind="sum", axes=axes, keepdims=False), left


def _moved(node: OnnxNode, value: str, term: Term, wanted: Term, role: str | None) -> str:
    """Emit a value with its dimensions in the order `wanted`, and return the result's name.

    role: role of the result in its name; None for the node's own output.
    """
    if term == wanted:
        return value if role is not None else node.emit("identity", [value])
    return node.emit("transpose", [value], role,
                     permutation=tuple(term.index(letter) for letter in wanted))


def _regrouped(node: OnnxNode, values: list[str], terms: list[Term], groups: list[str],
               role: str) -> str:
    """Emit a reshape of the first value to one dimension per group of letters.

    The size of a group is the product of the sizes of its letters. The size of a letter is read
    from the first value with this letter in its term.
    """
    sizes = tuple(tuple(next((index, term.index(letter)) for index, term in enumerate(terms)
                             if letter in term) for letter in group) for group in groups)
    return node.emit("reshape_by", values, role, sizes=sizes)


EINSUM: dict[str, Converter] = {"Einsum": _einsum}
