"""Generates the arithmetic of the kernel of row expressions, rows.cl."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gossamer.expression import FUNCTIONS, ExpressionStep
from gossamer.ops.epilogue import c_float
from gossamer.ops.kernel_expression import floats_in_kernels
from gossamer.ops.rows.expression import Phase, RowExpression
from gossamer.ops.rows.nest import Nest
from gossamer.ops.strided import Strides, divisor

_JOINS = {"sum": "ADD, ZERO", "mean": "ADD, ZERO", "max": "MAXIMUM, (-INFINITY)"}
_OF_ROW = "[OF_ROW(k)]"
_EACH_ROW = "UNROLL for (int k = 0; k < WIDE; k++)"


@dataclass
class RowCode:
    """Generates the macros of one kernel.

    halves: for each operand and then for the result, whether it is stored in float16.
    held: indices of the operands whose pieces stay in registers between phases.
    launch: index of the reduction that the launch computes; None if it computes all of them and
    the result.
    numbers: values of the kernel's parameters for sizes and strides.
    """

    expression: RowExpression
    nest: Nest
    halves: Sequence[bool]
    held: frozenset[int]
    launch: int | None = None
    numbers: list[int] = field(default_factory=list)

    def macros(self) -> dict[str, object]:
        """Return the macros, and set `numbers`."""
        self._sizes: list[str] = []
        self.numbers = []
        of_rows, of_pieces = list(self.nest.kept), list(self.nest.reduced)
        # the innermost loop in memory counts pieces of VECTOR elements
        (of_rows if self.nest.is_wide else of_pieces)[-1] //= self.nest.vector
        self._row_coordinates = self._coordinates("row", of_rows, "r")
        self._piece_coordinates = self._coordinates("i", of_pieces, "e")
        phases = self.expression.phases
        count = len(phases) - 1
        last = count if self.launch is None else self.launch
        defines: dict[str, object] = {
            "VECTOR": self.nest.vector, "WIDE": self.nest.wide,
            "OF_ROW(k)": "(k)" if self.nest.wide > 1 else "0",
            "PARAMETERS": ", ".join(self._parameters()), "ROW_VALUES": self._row_values(),
            "HOLDERS": " ".join(f"{self._fetched(i)} h{i}[HELD];" for i in sorted(self.held)),
            "HOLD": " ".join(self._hold())}
        body = []
        for index, phase in enumerate(phases[:last + 1]):
            is_result = index == count
            if self.launch is None or index == last:
                defines |= self._phase_macros("RESULT" if is_result else str(index), phase)
            if is_result:
                body.append("RESULTS")
                continue
            join = _JOINS[phase.kind]
            if self.launch is not None and index < last:
                body.append(f"FINISHED({index}, {join})")
            else:
                body.append(f"REDUCTION({index}, {join})")
            if self.launch is not None and index == last:
                body.append(f"KEEP({index})")
            elif phase.kind == "mean":
                body.append(f"MEAN({index})")
        if self.expression.is_per_row:
            defines["PER_ROW"] = 1
        return {**defines, "STORES": self._stores(), "BODY": " ".join(body),
                "SIZES": "".join(f", {text}" for text in self._sizes)}

    def _parameters(self) -> list[str]:
        types = ["HALF" if half else "float" for half in self.halves]
        # no kernel writes constants, so that their loads may be moved before the wait for others
        return [*(f"const GLOBAL {name} *{'RESTRICT ' if operand.name else ''}a{index}"
                  for index, (name, operand) in enumerate(zip(
                      types[:-1], self.expression.operands, strict=True))),
                f"GLOBAL {types[-1]} *RESTRICT y"]

    def _divisor(self, name: str, size: int) -> str:
        self._sizes.append(f"DIVISOR({name})")
        self.numbers += divisor(size)
        return name

    def _stride(self, name: str, stride: int) -> str:
        """Return the C expression of a stride, which may become a parameter of the kernel."""
        if stride in (0, 1):
            return str(stride)
        if f"int {name}" not in self._sizes:
            self._sizes.append(f"int {name}")
            self.numbers.append(stride)
        return name

    def _tensors(self) -> list[tuple[int, str]]:
        """Return the index of each tensor that the launch reads or writes, and a name suffix.

        The tensor of index -1 is the result.
        """
        phases = self.expression.phases
        own = phases if self.launch is None else phases[self.launch:self.launch + 1]
        read = sorted({number for phase in own for number in phase.reads if number >= 0})
        return [(index, str(index)) for index in read] + [(-1, "y")] * (own[-1] is phases[-1])

    def _coordinates(self, counter: str, sizes: Sequence[int], prefix: str) -> list[str]:
        """Return statements that compute the coordinates c<prefix><dim> of a row or piece.

        sizes: sizes of the loops, in which the innermost one counts pieces.
        """
        lines = [f"uint rest = (uint){counter};"]
        for dim in reversed(range(1, len(sizes))):
            name = self._divisor(f"n{prefix}{dim}", sizes[dim])
            lines.append(f"uint q{prefix}{dim} = QUOTIENT(rest, {name}); int c{prefix}{dim} = "
                         f"(int)(rest - q{prefix}{dim} * (uint){name}); rest = q{prefix}{dim};")
        return [*lines, f"int c{prefix}0 = (int)rest;"] if sizes else []

    def _terms(self, strides: Strides, prefix: str, suffix: str, in_pieces: bool) -> list[str]:
        """Return the summands of a place, one for each loop along which it changes.

        in_pieces: whether the innermost loop counts pieces of VECTOR elements.
        """
        terms = []
        for dim, stride in enumerate(strides):
            if stride:
                factor = self._stride(f"s{prefix}{suffix}_{dim}", stride)
                unit = " * VECTOR" if in_pieces and dim == len(strides) - 1 else ""
                terms.append(f"c{prefix}{dim}{unit}{'' if factor == '1' else f' * {factor}'}")
        return terms

    def _row_values(self) -> str:
        nest = self.nest
        lines = [*self._row_coordinates]
        names = []
        for tensor, suffix in self._tensors():
            terms = self._terms(nest.row_strides[tensor], "r", suffix, nest.is_wide)
            if nest.firsts[tensor]:
                terms.append(self._stride(f"first{suffix}", nest.firsts[tensor]))
            names.append(f"int b{suffix}")
            lines.append(f"b{suffix} = {' + '.join(terms) or '0'};")
        loads = [f"VALUE v{index}[WIDE]; {_EACH_ROW} v{index}[k] = "
                 f"{self._one(index, f'b{index} + k * ' + self._inner(index))};"
                 for index, _ in self._tensors()
                 if index >= 0 and not self.expression.varies(self.expression.operands[index])]
        return " ".join([f"{name};" for name in names] + ["{", *lines, "}"] + loads)

    def _inner(self, tensor: int) -> str:
        """Return the C expression of a tensor's stride along a piece."""
        dims = self.nest.row_strides if self.nest.is_wide else self.nest.strides
        prefix, suffix = "r" if self.nest.is_wide else "e", "y" if tensor < 0 else str(tensor)
        return self._stride(f"s{prefix}{suffix}_{len(dims[tensor]) - 1}",
                            self.nest.inner_stride(tensor))

    def _one(self, index: int, place: str) -> str:
        return f"LOAD_HALF(a{index}, {place})" if self.halves[index] else f"a{index}[{place}]"

    def _kind(self, tensor: int) -> str:
        return "HALVES" if self.halves[tensor] else "FLOATS"

    def _fetched(self, index: int) -> str:
        return f"FETCHED_{self._kind(index)}"

    def _places(self, tensors: Sequence[int]) -> str:
        """Return statements that compute o<tensor>, the place of a piece, for some tensors."""
        if not tensors:
            return ""
        lines = [f"int o{suffix};" for tensor, suffix in self._tensors() if tensor in tensors]
        lines += ["{", *self._piece_coordinates]
        for tensor, suffix in self._tensors():
            if tensor in tensors:
                terms = self._terms(self.nest.strides[tensor], "e", suffix, not self.nest.is_wide)
                lines.append(f"o{suffix} = {' + '.join([f'b{suffix}', *terms])};")
        return " ".join([*lines, "}"])

    def _hold(self) -> list[str]:
        held = sorted(self.held)
        return [self._places(held), *(
            f"h{index}[h] = FETCH_{self._kind(index)}(a{index}, o{index});" for index in held)]

    def is_loaded_whole(self, index: int) -> bool:
        """Return whether one instruction loads a piece of an operand."""
        return self.nest.vector == 1 or self.nest.inner_stride(index) == 1

    def _load(self, index: int) -> str:
        if index in self.held:
            return f"VALUE v{index}[VECTOR]; SPREAD_{self._kind(index)}(v{index}, h{index}[h])"
        if self.is_loaded_whole(index):
            return f"VALUE v{index}[VECTOR]; LOAD_{self._kind(index)}(v{index}, a{index}, o{index})"
        return (f"VALUE v{index}[VECTOR]; UNROLL for (int k = 0; k < VECTOR; k++) v{index}[k] = "
                f"{self._one(index, f'o{index} + k * ' + self._inner(index))};")

    def _phase_macros(self, name: str, phase: Phase) -> dict[str, object]:
        expression = floats_in_kernels(phase.expression)
        rows, elements, value = _statements(expression.steps, self._names(phase), f"p{name}_",
                                            expression.outputs[0])
        varying = [number for number in sorted(set(phase.reads))
                   if number >= 0 and self.expression.varies(self.expression.operands[number])]
        placed = [number for number in varying if number not in self.held]
        if name == "RESULT" and not self.expression.is_per_row:
            placed.append(-1)
        return {f"BEFORE_{name}": rows,
                f"PIECE_{name}": " ".join([self._places(placed), *map(self._load, varying)]),
                f"STEPS_{name}": elements, f"VALUE_{name}": value}

    def _names(self, phase: Phase) -> list[tuple[str, bool]]:
        """Return the name of each value that a phase reads, and whether a row shares the value."""
        names = []
        for number in phase.reads:
            if number < 0:
                names.append((f"total{-1 - number}{_OF_ROW}", True))
            elif self.expression.varies(self.expression.operands[number]):
                names.append((f"v{number}[k]", False))
            else:
                names.append((f"v{number}{_OF_ROW}", True))
        return names

    def _stores(self) -> str:
        if self.expression.is_per_row:
            place = f"by + k * {self._inner(-1) if self.nest.is_wide else '0'}"
        elif self.is_loaded_whole(-1):
            return f"STORE_{self._kind(-1)}(y, oy, r);"
        else:
            place = f"oy + k * {self._inner(-1)}"
        value = "r" if self.expression.is_per_row else "r[k]"
        store = (f"STORE_HALF(y, {place}, {value});" if self.halves[-1]
                 else f"y[{place}] = {value};")
        return store if self.expression.is_per_row else (
            f"UNROLL for (int k = 0; k < VECTOR; k++) {store}")


def _statements(steps: Sequence[ExpressionStep], inputs: Sequence[tuple[str, bool]], prefix: str,
                output: int) -> tuple[str, str, str]:
    """Return the C code of an expression.

    The result is the code of the steps that a row shares, the code of the other steps, and the name
    of the output. A division by a value of the row becomes a multiplication by its reciprocal.

    inputs: name of each input, and whether a row shares its value.
    """
    values = list(inputs)
    rows, elements = [], []

    def of_row(name: str, text: str) -> str:
        rows.append(f"VALUE {name}[WIDE]; {_EACH_ROW} {name}[k] = {text};")
        return name + _OF_ROW

    for index, step in enumerate(steps):
        name, arguments = f"{prefix}{index}", [values[argument] for argument in step.arguments]
        constants = {f"c{i}": c_float(constant) for i, constant in enumerate(step.constants)}
        if step.function == "constant":
            values.append((constants["c0"], True))
            continue
        shared = all(is_shared for _, is_shared in arguments)
        if step.function == "div" and arguments[1][1] and not shared:
            factor = of_row(f"{name}_factor", f"ONE / {arguments[1][0]}")
            text = f"({arguments[0][0]} * {factor})"
        else:
            text = FUNCTIONS[step.function].c.format(*(text for text, _ in arguments), **constants)
        if shared:
            values.append((of_row(name, text), True))
        else:
            elements.append(f"VALUE {name} = {text};")
            values.append((name, False))
    return " ".join(rows), " ".join(elements), values[output][0]
