"""PTX for the end of a sparse convolution.

The code adds up the sums of the k_groups (see tiling.py), applies the epilogue and stores the
results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.device.cuda.ptx import Address, Bits, Code, Operand
from gossamer.expression import Expression, ExpressionStep
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.sparse.generated.tiling import GeneratedTiling

_ONE_INSTRUCTION = {"add": "add.rn.f32", "sub": "sub.rn.f32", "mul": "mul.rn.f32",
                    "min": "min.NaN.f32", "max": "max.NaN.f32", "neg": "neg.f32",
                    "abs": "abs.f32"}
_SHORT = {*_ONE_INSTRUCTION, "relu", "clip", "leaky_relu", "prelu", "constant"}

_LARGEST_OFFSET = 2**22
"""Maximum number of bytes that a load or store may add to its address register."""


def is_short(expression: Expression) -> bool:
    """Return whether the generated code applies an epilogue; if not, a separate kernel does."""
    return all(step.function in _SHORT for step in expression.steps)


class Epilogued:
    """A problem's epilogue in generated code.

    expression: the epilogue's expression.
    operands: the kind of each operand, "channel" or "tensor"; empty if the code does not apply the
    epilogue.
    applied: True if the code applies an epilogue.
    tensors: the names of the kernel parameters that hold the tensor operands.
    """

    def __init__(self, epilogue: Epilogue, arrays: Mapping[str, np.ndarray],
                 channels: int) -> None:
        self.expression = epilogue.expression
        self.operands = epilogue.operands if is_short(self.expression) else ()
        self.applied = is_short(self.expression) and not self.expression.is_identity
        self.tensors = [f"tensor{i}" for i, kind in enumerate(self.operands) if kind == "tensor"]
        self._constants = {
            f"operand{i}": np.broadcast_to(
                np.asarray(arrays[f"operand{i}"], np.float32).reshape(-1), (channels,))
            for i, kind in enumerate(self.operands) if kind == "channel"}

    def constant(self, operand: int, channel: int) -> Bits:
        """Return the value of a "channel" operand for an output channel."""
        return bits(self._constants[f"operand{operand}"][channel])

    def apply(self, code: Code, value: str, operands: Sequence[Operand]) -> Operand:
        """Emit the epilogue for one sum and return the result.

        The operands are constants or registers.
        """
        values: list[Operand] = [value, *operands]
        for step in self.expression.steps:
            values.append(_step(code, step, [values[index] for index in step.arguments]))
        return values[self.expression.outputs[0]]


def bits(value: float) -> Bits:
    """Return the literal of a float32, exact for NaN and infinities too."""
    return Bits(np.float32(value).view(np.uint32))


def _step(code: Code, step: ExpressionStep, arguments: Sequence[Operand]) -> Operand:
    """Emit one step of an expression and return its value."""
    constants = [bits(constant) for constant in step.constants]
    if step.function in _ONE_INSTRUCTION:
        return code.get(_ONE_INSTRUCTION[step.function], "f", *arguments)
    if step.function == "constant":
        return constants[0]
    value = code.get("mov.f32", "f", arguments[0])
    if step.function == "relu":
        return code.get("max.NaN.f32", "f", value, Bits(0))
    if step.function == "clip":
        return code.get("min.NaN.f32", "f",
                        code.get("max.NaN.f32", "f", value, constants[0]), constants[1])
    slope = constants[0] if step.function == "leaky_relu" else arguments[1]
    negative = code.get("setp.lt.f32", "p", value, Bits(0))
    return code.get("selp.f32", "f", code.get("mul.rn.f32", "f", value, slope), value, negative)


class _Pointer:
    """A pointer with offsets of any size.

    An offset that is too large for a load or store is added to the address register.
    """

    def __init__(self, code: Code, register: str) -> None:
        self._code, self._register, self._moved = code, register, 0

    def at(self, offset: int) -> Address:
        """Return the address `offset` bytes after the address that the pointer was created with."""
        if not 0 <= offset - self._moved < _LARGEST_OFFSET:
            self._register = self._code.get("add.s64", "q", self._register, offset - self._moved)
            self._moved = offset
        return Address(self._register, offset - self._moved)


class Results:
    """Emits the end of a block's code: the sum over k_groups, the epilogue and the stores."""

    def __init__(self, code: Code, division: GeneratedTiling, channels: Sequence[int],
                 epilogue: Epilogued) -> None:
        self._code, self._division = code, division
        self._channels, self._epilogue = channels, epilogue

    def write(self, values: Sequence[tuple[str, ...]], memory: str) -> None:
        """Emit the end of the code.

        values: for each channel, the sums of this work-item's k_group, one per image.
        memory: the register with the address of shared memory.
        """
        code, count = self._code, self._division.config.k_groups
        # reading %tid.x again needs fewer registers than keeping its value from the start
        k_group, item = code.divided(code.get("mov.u32", "r", "%tid.x"), self._division.k_group)
        if count > 1:
            sums = self._share(values, item, k_group, memory)
        self._leave_unless_inside(item)
        if count == 1:
            self._store(list(enumerate(values)))
            return
        labels = [code.label() for _ in range(count)]
        code.dispatch(k_group, labels)
        for group, label in enumerate(labels):
            code.place(label)
            totals = [(b, tuple(self._total(value, image, b, group, sums)
                                for image, value in enumerate(values[b])))
                      for b in range(group, len(values), count)]
            self._store(totals)

    def _share(self, values: Sequence[tuple[str, ...]], item: str, k_group: str,
               memory: str) -> str:
        """Emit code that stores the sums of all k_groups to shared memory.

        Return the register with the shared-memory address of this work-item's first sum.
        """
        code = self._code
        code.emit("bar.sync", 0)
        address = code.get("mad.lo.u32", "r", item, 4, memory)
        target = code.get("mad.lo.u32", "r", k_group, self._offset(1, 0, 0), address)
        for b, channel_sums in enumerate(values):
            for image, value in enumerate(channel_sums):
                code.emit("st.shared.f32", Address(target, self._offset(0, b, image)), value)
        code.emit("bar.sync", 0)
        return address

    def _offset(self, k_group: int, b: int, image: int) -> int:
        """Return the offset in bytes of a sum from the work-item's first sum."""
        d = self._division
        return 4 * d.k_group * ((k_group * len(self._channels) + b) * d.pair + image)

    def _total(self, value: str, image: int, b: int, group: int, sums: str) -> str:
        """Emit code that adds the other k_groups' sums to `value`, the sum of k_group `group`."""
        code = self._code
        for k_group in range(self._division.config.k_groups):
            if k_group != group:
                address = Address(sums, self._offset(k_group, b, image))
                other = code.get("ld.shared.f32", "f", address)
                value = code.get("add.rn.f32", "f", value, other)
        return value

    def _leave_unless_inside(self, item: str) -> None:
        """Emit code that ends work-items without a result.

        In the other work-items, the code sets the register `_at` to the index of the work-item's
        first result within an output channel.
        """
        code, d = self._code, self._division
        problem, config = d.problem, d.config
        images, rows, columns = tile_indices(code, d)
        pixel, lane = code.divided(item, d.lanes)
        row, column = code.divided(pixel, config.columns)
        row = code.get("mad.lo.u32", "r", rows, config.rows, row)
        column = code.get("mad.lo.u32", "r", columns, config.columns, column)
        image = code.get("mad.lo.u32", "r", images, config.images,
                         code.get("mul.lo.u32", "r", lane, d.pair))
        inside = code.get("setp.lt.u32", "p", item, d.items)
        for value, limit in ((row, problem.out_height), (column, problem.out_width),
                             (image, problem.batch)):
            inside = code.get("setp.lt.and.u32", "p", value, limit, inside)
        code.emit("exit", guard=f"!{inside}")
        at = code.get("mad.lo.u32", "r", row, problem.out_width, column)
        self._at = code.get("mad.lo.u32", "r", at, problem.batch, image)

    def _store(self, totals: Sequence[tuple[int, tuple[str, ...]]]) -> None:
        """Emit the epilogue and the stores for some channels.

        totals: for each channel, its index in the block and its sums, one per image.
        """
        code, d = self._code, self._division
        y, *tensors = (self._pointer(name) for name in ("y", *self._epilogue.tensors))
        plane = d.problem.image_pixels * d.pixel
        for b, values in totals:
            channel = self._channels[b]
            if self._epilogue.applied:
                image_operands = self._operands(
                    channel, [tensor.at(channel * plane) for tensor in tensors])
                values = tuple(
                    code.get("mov.f32", "f", self._epilogue.apply(code, value, operands))
                    for value, operands in zip(values, image_operands, strict=True))
            if d.halves:
                low, high = values
                packed = code.get("cvt.rn.f16x2.f32", "r", high, low)
                code.emit("st.global.b32", y.at(channel * plane), packed)
            else:
                code.emit("st.global.f32", y.at(channel * plane), values[0])
        code.emit("exit")

    def _pointer(self, name: str) -> _Pointer:
        """Emit code that computes the address of this work-item's element in a tensor parameter."""
        at = self._code.get("mul.wide.u32", "q", self._at, self._division.itemsize)
        start = self._code.get("ld.param.u64", "q", Address(name))
        return _Pointer(self._code, self._code.get("add.s64", "q", start, at))

    def _operands(self, channel: int, addresses: Sequence[Address]) -> list[list[Operand]]:
        """Emit the loads of a channel's operands and return the operands of each image."""
        d = self._division
        operands: list[list[Operand]] = [[] for _ in range(d.pair)]
        remaining = iter(addresses)
        for index, kind in enumerate(self._epilogue.operands):
            values: Sequence[Operand]
            if kind == "channel":
                values = [self._epilogue.constant(index, channel)] * d.pair
            elif d.halves:
                packed = self._code.get("ld.global.b32", "r", next(remaining))
                values = unpacked(self._code, packed)
            else:
                values = [self._code.get("ld.global.f32", "f", next(remaining))]
            for image_operands, value in zip(operands, values, strict=True):
                image_operands.append(value)
        return operands


def tile_indices(code: Code, division: GeneratedTiling) -> tuple[str, str, str]:
    """Emit code that computes the work-group's indices along images, rows and columns.

    Return the registers with these indices.
    """
    _, rows, columns = division.tiles
    rest, column = code.divided(code.get("mov.u32", "r", "%ctaid.x"), columns)
    return (*code.divided(rest, rows), column)


def unpacked(code: Code, register: str) -> tuple[str, str]:
    """Emit code that converts the two float16 values in a register to float32.

    Return the registers with the two results.
    """
    low, high = code.register("h"), code.register("h")
    code.emit("mov.b32", (low, high), register)
    return code.get("cvt.f32.f16", "f", low), code.get("cvt.f32.f16", "f", high)
