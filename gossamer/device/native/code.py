"""Loops, vectors and element-wise arithmetic as LLVM IR."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from gossamer.expression import Expression

FLOAT, BYTE, INT32, INT64, POINTER = (
    ir.FloatType(), ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.PointerType())
_CONTRACT = ("contract",)
_LEAST_POWER, _LOG2_E, _ROUNDING = -87.33654, 1.44269504, 1.5 * 2**23
_LN_2 = (0.693359375, -2.12194440e-4)
"""The natural logarithm of 2 as the sum of two numbers.

The first number has few significant bits, so that its products with exponents are exact.
"""
_POWERS = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
           5.0000001201e-1, 1.0, 1.0)
"""Coefficients of a polynomial that approximates e**x for x around 0, highest power first."""


class Code:
    """One function of a module, emitted instruction by instruction.

    module: the module.
    parameters: the types of the function's parameters.
    internal: whether the function is called only by other functions of the module.

    Attributes: `arguments`, the values of the parameters, and `builder`, llvmlite's IRBuilder.
    """

    def __init__(self, module: ir.Module, name: str, parameters: Sequence[ir.Type],
                 internal: bool = False) -> None:
        self.function = ir.Function(module, ir.FunctionType(ir.VoidType(), parameters), name)
        if internal:
            self.function.linkage = "internal"
            self.function.attributes.add("noinline")
        self.module = module
        self.arguments = self.function.args
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))

    def at(self, pointer: Any, offset: Any) -> Any:
        """Return a pointer advanced by some bytes."""
        return self.builder.gep(pointer, [integer(offset)], source_etype=BYTE)

    def load(self, kind: ir.Type, pointer: Any, offset: Any = 0, aligned: bool = False) -> Any:
        """Load the value or vector at an offset in bytes.

        aligned: whether the address of the vector is a multiple of the vector's size.
        """
        value = self.builder.load(self.at(pointer, offset), typ=kind)
        lanes = getattr(kind, "count", 1) if aligned else 1
        value.align = 8 if kind in (INT64, POINTER) else 4 * lanes
        return value

    def store(self, value: Any, pointer: Any, offset: Any) -> None:
        """Store a number, or an aligned vector, at an offset in bytes.

        The address of a vector must be a multiple of the vector's size.
        """
        self.builder.store(value, self.at(pointer, offset)).align = 4 * getattr(
            value.type, "count", 1)

    def short(self, pointer: Any, number: Any) -> Any:
        """Load an element of a uint16 array, extended to 64 bits."""
        address = self.at(pointer, self.builder.mul(number, integer(2)))
        value = self.builder.load(address, typ=ir.IntType(16))
        value.align = 2
        return self.builder.zext(value, INT64)

    def index(self, pointer: Any, number: Any) -> Any:
        """Load an element of a uint32 array, extended to 64 bits."""
        offset = self.builder.mul(number, integer(4))
        return self.builder.zext(self.load(INT32, pointer, offset), INT64)

    def splat(self, value: Any, lanes: int) -> Any:
        """Return a vector with the same value in all lanes."""
        none = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
        one = self.builder.insert_element(none, value, ir.Constant(INT32, 0))
        return self.builder.shuffle_vector(
            one, none, ir.Constant(ir.VectorType(INT32, lanes), [0] * lanes))

    def multiply_add(self, x: Any, y: Any, z: Any) -> Any:
        """Return x * y + z, as a fused multiply-add if the CPU supports that."""
        return self.builder.fadd(self.builder.fmul(x, y, flags=_CONTRACT), z, flags=_CONTRACT)

    def exponential(self, x: Any) -> Any:
        """Return e**x for a vector of nonpositive numbers.

        The polynomial is from S. Moshier's Cephes library. Results below the smallest normal number
        are 0.
        """
        b, kind = self.builder, x.type
        bits = ir.VectorType(INT32, kind.count)

        def all_of(value: Any, like: ir.Type = kind) -> Any:
            return ir.Constant(like, [value] * kind.count)

        low = all_of(_LEAST_POWER)
        tiny = b.fcmp_ordered("<", x, low)
        inside = b.select(tiny, low, x)
        # adding _ROUNDING rounds x / ln(2) to an integer exponent in the low bits of the sum
        rounded = self.multiply_add(inside, all_of(_LOG2_E), all_of(_ROUNDING))
        exponent = b.fsub(rounded, all_of(_ROUNDING))
        for part in _LN_2:
            inside = self.multiply_add(exponent, all_of(-part), inside)
        power = all_of(_POWERS[0])
        for coefficient in _POWERS[1:]:
            power = self.multiply_add(power, inside, all_of(coefficient))
        scale = b.bitcast(b.add(b.shl(b.bitcast(rounded, bits), all_of(23, bits)),
                                all_of(127 << 23, bits)), kind)
        return b.select(tiny, all_of(0.0), b.fmul(power, scale))

    def fold(self, size: int, lanes: int, fill: float, source: Any,
             make: Callable[[Any, Any, Any, int], Any], first: Any) -> Any:
        """Fold a row one vector at a time, and return the final result.

        size: number of elements of the row.
        fill: value of the unused lanes of the last vector.
        make: function make(result, vector, offset, valid) that returns the next result. `offset` is
        the byte offset of the vector in the row; `valid` is the number of its valid lanes.
        first: the initial result.
        """
        whole, rest = size // lanes * lanes, size % lanes
        with self.loop(0, whole, lanes, [first]) as step:
            byte = self.builder.mul(step.index, integer(4))
            step.next = [make(step.values[0], self.load(vector(lanes), source, byte), byte, lanes)]
        if not rest:
            return step.values[0]
        read = self.load_first(source, integer(4 * whole), lanes, rest)
        filled = self.builder.select(_mask(lanes, rest), read, ir.Constant(
            vector(lanes), [fill] * lanes))
        return make(step.values[0], filled, integer(4 * whole), rest)

    def reduce_lanes(self, combine: Callable[..., Any], values: Any) -> Any:
        """Combine the lanes of a vector with a function, one after another."""
        lanes = [self.builder.extract_element(values, ir.Constant(INT32, lane))
                 for lane in range(values.type.count)]
        return functools.reduce(functools.partial(combine, self.builder), lanes)

    def load_first(self, pointer: Any, offset: Any, lanes: int, valid: int,
                   aligned: bool = False) -> Any:
        """Load only the first `valid` lanes of a vector; the other lanes are 0."""
        if valid == lanes:
            return self.load(vector(lanes), pointer, offset, aligned)
        return self._masked(self.at(pointer, offset), _mask(lanes, valid))

    def load_within(self, row: Any, start: int, lanes: int, width: int) -> Any:
        """Load the vector that starts at element `start` of a row.

        Lanes outside of the row are 0.

        row: address of the row.
        width: number of elements of the row.
        """
        inside = [0 <= start + lane < width for lane in range(lanes)]
        if not any(inside):
            return ir.Constant(vector(lanes), [0.0] * lanes)
        if all(inside):
            return self.load(vector(lanes), row, 4 * start)
        return self._masked(self.at(row, 4 * start), ir.Constant(
            ir.VectorType(ir.IntType(1), lanes), list(map(int, inside))))

    def _masked(self, pointer: Any, mask: Any) -> Any:
        """Load only those lanes of a vector that are set in a mask; the other lanes are 0."""
        kind = vector(mask.type.count)
        read = self._intrinsic("load", kind.count, kind, [POINTER, INT32, mask.type, kind])
        return self.builder.call(read, [pointer, ir.Constant(INT32, 4), mask,
                                        ir.Constant(kind, [0.0] * kind.count)])

    def strided(self, source: Any, first: Any, begin: int, stride: int, width: int, lanes: int,
                valid: int) -> Any:
        """Load every stride-th element of a row as a vector.

        Lane l is the element at position first + (begin + l) * stride of the row. The lane is 0 if
        this position is outside of the row, or if l >= valid.

        source: address of the element at position `first`.
        first: a position relative to the start of the row; it may be negative.
        begin: number of lanes in the vectors before this one.
        width: number of elements of the row.
        """
        b, wide = self.builder, ir.VectorType(INT64, lanes)
        none, zero = ir.Constant(wide, ir.Undefined), ir.Constant(vector(lanes), [0.0] * lanes)
        spread = b.shuffle_vector(b.insert_element(none, first, ir.Constant(INT32, 0)), none,
                                  ir.Constant(ir.VectorType(INT32, lanes), [0] * lanes))

        def inside(positions: Sequence[int]) -> Any:
            return b.icmp_unsigned("<", b.add(spread, ir.Constant(wide, list(positions))),
                                   ir.Constant(wide, [width] * lanes))

        if stride <= 2:
            parts = []
            for number in range(stride):
                start = begin * stride + number * lanes
                mask = b.and_(inside(range(start, start + lanes)),
                              _mask(lanes, max(min(valid * stride - number * lanes, lanes), 0)))
                parts.append(self._masked(self.at(source, 4 * start), mask))
            return parts[0] if stride == 1 else b.shuffle_vector(*parts, ir.Constant(
                ir.VectorType(INT32, lanes), list(range(0, 2 * lanes, 2))))
        steps = [(begin + lane) * stride for lane in range(lanes)]
        mask = b.and_(inside(steps), _mask(lanes, valid))
        pointers = b.gep(source, [ir.Constant(wide, [4 * step for step in steps])],
                         source_etype=BYTE)
        name = f"llvm.masked.gather.v{lanes}f32.v{lanes}p0"
        kinds = [ir.VectorType(POINTER, lanes), INT32, mask.type, vector(lanes)]
        gather = self.module.globals.get(name) or ir.Function(
            self.module, ir.FunctionType(vector(lanes), kinds), name)
        pointers.type = kinds[0]
        return b.call(gather, [pointers, ir.Constant(INT32, 4), mask, zero])

    def store_first(self, value: Any, pointer: Any, offset: Any, lanes: int, valid: int) -> None:
        """Store only the first `valid` lanes of a vector."""
        if valid == lanes:
            self.builder.store(value, self.at(pointer, offset)).align = 4
            return
        mask = _mask(lanes, valid)
        write = self._intrinsic("store", lanes, ir.VoidType(), [vector(lanes), POINTER, INT32,
                                                                mask.type])
        self.builder.call(write, [value, self.at(pointer, offset), ir.Constant(INT32, 4), mask])

    def _intrinsic(self, verb: str, lanes: int, result: ir.Type,
                   parameters: Sequence[ir.Type]) -> ir.Function:
        name = f"llvm.masked.{verb}.v{lanes}f32.p0"
        return self.module.globals.get(name) or ir.Function(
            self.module, ir.FunctionType(result, parameters), name)

    @contextmanager
    def loop(self, start: Any, end: Any, step: int = 1, carried: Sequence[Any] = ()
             ) -> Iterator[Loop]:
        """Emit a loop over start, start + step, ... below `end`; the `with` block emits its body.

        carried: initial values of loop-carried variables. The block reads `loop.values` and assigns
        the values for the next iteration to `loop.next`. After the block, `loop.values` contains
        the final values.
        """
        b = self.builder
        head, body, done = (self.function.append_basic_block(name)
                            for name in ("head", "body", "done"))
        before = b.block
        b.branch(head)
        b.position_at_end(head)
        index = b.phi(INT64)
        index.add_incoming(integer(start), before)
        values = [b.phi(first.type) for first in carried]
        for value, first in zip(values, carried, strict=True):
            value.add_incoming(first, before)
        b.cbranch(b.icmp_signed("<", index, integer(end)), body, done)
        b.position_at_end(body)
        loop = Loop(index, values)
        yield loop
        index.add_incoming(b.add(index, integer(step)), b.block)
        for value, following in zip(values, loop.next, strict=True):
            value.add_incoming(following, b.block)
        b.branch(head)
        b.position_at_end(done)

    def accumulate(self, first: Any, end: Any, sums: Sequence[Any], accumulators: int,
                   add: Callable[[Any, Sequence[Any]], list[Any]]) -> Sequence[Any]:
        """Emit a loop that adds terms to vectors of sums, and return the final sums.

        Each addition to a sum waits for the one before. If there are fewer sums than
        `accumulators`, several successive terms are therefore added to different accumulators, and
        the accumulators of a sum are added at the end.

        add: function add(index, sums) that returns the sums after the addition of a term.
        """
        b, number = self.builder, len(sums)
        together = max(accumulators // number, 1)
        zeros = [ir.Constant(value.type, [0.0] * value.type.count) for value in sums]
        middle = b.sub(integer(end), b.srem(
            b.sub(integer(end), integer(first)), integer(together)))
        with self.loop(first, middle, together, [*sums, *zeros * (together - 1)]) as step:
            step.next = [value for offset in range(together) for value in add(
                b.add(step.index, integer(offset)),
                step.values[offset * number:(offset + 1) * number])]
        totals = step.values[:number]
        for offset in range(1, together):
            totals = [b.fadd(total, value) for total, value in zip(
                totals, step.values[offset * number:(offset + 1) * number], strict=True)]
        if together > 1:
            with self.loop(middle, end, carried=totals) as rest:
                rest.next = add(rest.index, rest.values)
            totals = rest.values
        return totals

    def where(self, condition: Any, make: Callable[[], Sequence[Any]],
              otherwise: Sequence[Any]) -> list[Any]:
        """Emit a branch; return `make`'s values if the condition is true, else `otherwise`."""
        b = self.builder
        then, after = (self.function.append_basic_block(name) for name in ("then", "after"))
        before = b.block
        b.cbranch(condition, then, after)
        b.position_at_end(then)
        made, last = make(), b.block
        b.branch(after)
        b.position_at_end(after)
        results = []
        for value, other in zip(made, otherwise, strict=True):
            result = b.phi(other.type)
            result.add_incoming(value, last)
            result.add_incoming(other, before)
            results.append(result)
        return results

    def by_size(self, number: Any, total: int, size: int,
                make: Callable[[int], Sequence[Any]]) -> None:
        """Emit code for part `number` of a range, specialised for the part's size.

        The range of `total` elements is divided into parts of `size` elements; the last part may be
        smaller.

        make: function that emits the code for a part of the given size. It is called once for each
        size that occurs.
        """
        whole, rest = divmod(total, size)
        if whole and rest:
            is_whole = self.builder.icmp_signed("<", number, integer(whole))
            self.where(is_whole, lambda: make(size), [])
            self.where(self.builder.not_(is_whole), lambda: make(rest), [])
        elif total:
            make(size if whole else rest)

    def evaluate(self, expression: Expression, values: Sequence[Any], lanes: int) -> Any:
        """Return the first output of an expression of vectors."""
        return self.evaluate_all(expression, values, lanes)[0]

    def evaluate_all(self, expression: Expression, values: Sequence[Any], lanes: int
                     ) -> list[Any]:
        """Return the outputs of an expression of vectors."""
        results = list(values)
        for step in expression.steps:
            constants = [ir.Constant(vector(lanes), [float(c)] * lanes) for c in step.constants]
            results.append(_FUNCTIONS[step.function](
                self.builder, *(results[index] for index in step.arguments), *constants))
        return [results[output] for output in expression.outputs]


class TaskCode(Code):
    """The function of a module that computes a range of tasks.

    module: the module, or None for a new one.

    Attributes: `first` and `end`, the range of tasks, and `scratch`, the address of the thread's
    scratch memory.
    """

    def __init__(self, name: str, module: ir.Module | None = None) -> None:
        super().__init__(module or ir.Module(), name, [POINTER, INT64, INT64, POINTER])
        _, self.first, self.end, self.scratch = self.arguments

    def argument(self, number: int, kind: ir.Type = POINTER) -> Any:
        """Load an argument of the launch, by default an address."""
        return self.load(kind, self.arguments[0], 8 * number)

    def finished(self) -> str:
        """End the function, and return the module."""
        self.builder.ret_void()
        return str(self.module)


class Loop:
    """The state of a loop while its body is emitted; see Code.loop."""

    def __init__(self, index: Any, values: Sequence[Any]) -> None:
        self.index, self.values = index, values
        self.next: Sequence[Any] = ()


def integer(value: Any) -> Any:
    """Return a Python integer as a 64-bit constant; other values unchanged."""
    return ir.Constant(INT64, value) if isinstance(value, int) else value


def vector(lanes: int) -> ir.VectorType:
    """Return the type of a vector of float32 elements."""
    return ir.VectorType(FLOAT, lanes)


def unsupported(expression: Expression, outputs: int = 1) -> str | None:
    """Return why an expression cannot be emitted, or None.

    outputs: maximum number of outputs.
    """
    if len(expression.outputs) > outputs:
        return "has an epilogue with two outputs"
    missing = {step.function for step in expression.steps} - set(_FUNCTIONS)
    return f"has {', '.join(sorted(missing))} in its epilogue" if missing else None


def _mask(lanes: int, valid: int) -> ir.Constant:
    return ir.Constant(ir.VectorType(ir.IntType(1), lanes),
                       [1] * valid + [0] * (lanes - valid))


def _filled(like: Any, value: float) -> ir.Constant:
    return ir.Constant(like.type, [value] * like.type.count)


def _at_least(b: ir.IRBuilder, x: Any, low: Any) -> Any:
    """Return the maximum of x and `low`; NaN if x is NaN. `low` must not be NaN."""
    return b.select(b.fcmp_ordered("<", x, low), low, x)


def _at_most(b: ir.IRBuilder, x: Any, high: Any) -> Any:
    return b.select(b.fcmp_ordered(">", x, high), high, x)


def _either(comparison: str) -> Callable[..., Any]:
    """Return a function that emits the minimum or maximum of two values.

    The result is NaN if either value is NaN.
    """
    def choose(b: ir.IRBuilder, x: Any, y: Any) -> Any:
        chosen = b.select(b.fcmp_ordered(comparison, x, y), x, y)
        return b.select(b.fcmp_unordered("uno", x, x), x, chosen)
    return choose


larger = _either(">")


def _truth(comparison: str) -> Callable[..., Any]:
    def compare(b: ir.IRBuilder, x: Any, y: Any) -> Any:
        return b.select(b.fcmp_ordered(comparison, x, y), _filled(x, 1.0), _filled(x, 0.0))
    return compare


def _slope(b: ir.IRBuilder, x: Any, slope: Any) -> Any:
    return b.select(b.fcmp_ordered("<", x, _filled(x, 0.0)), b.fmul(x, slope), x)


def _sign(b: ir.IRBuilder, x: Any) -> Any:
    zero = _filled(x, 0.0)
    below = b.select(b.fcmp_ordered("<", x, zero), _filled(x, -1.0), x)
    return b.select(b.fcmp_ordered(">", x, zero), _filled(x, 1.0), below)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda b, x, y: b.fadd(x, y),
    "sub": lambda b, x, y: b.fsub(x, y),
    "mul": lambda b, x, y: b.fmul(x, y),
    "div": lambda b, x, y: b.fdiv(x, y),
    "neg": lambda b, x: b.fneg(x),
    "abs": lambda b, x: b.select(b.fcmp_ordered("<", x, _filled(x, 0.0)), b.fneg(x), x),
    "min": _either("<"),
    "max": larger,
    "less": _truth("<"),
    "less_equal": _truth("<="),
    "greater": _truth(">"),
    "greater_equal": _truth(">="),
    "equal": _truth("=="),
    "relu": lambda b, x: _at_least(b, x, _filled(x, 0.0)),
    "clip": lambda b, x, low, high: _at_most(b, _at_least(b, x, low), high),
    "leaky_relu": _slope,
    "prelu": _slope,
    "hard_sigmoid": lambda b, x, alpha, beta: _at_most(b, _at_least(b, b.fadd(
        b.fmul(x, alpha), beta), _filled(x, 0.0)), _filled(x, 1.0)),
    "sign": _sign,
    "where": lambda b, condition, x, y: b.select(
        b.fcmp_unordered("!=", condition, _filled(condition, 0.0)), x, y),
    "constant": lambda b, value: value,
}
"""The emitters of the supported functions; each function takes only a few instructions."""
