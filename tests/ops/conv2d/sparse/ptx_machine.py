"""Interprets PTX as data: runs generated code without a GPU.

Registers hold 32 lanes. Lanes that diverge at a branch continue at the lowest address first, so
that they meet again behind it. Copies to shared memory are carried out when they are issued, or as
late as their wait allows, with invalid bytes in their place until then: results must be the same,
whatever the order of the warps between two barriers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gossamer.device.cuda.ptx import Address, Bits, Code, Instruction, Operand

WARP = 32
_GUARD = 256
_TYPES = {"pred": np.bool_, "b32": np.uint32, "u32": np.uint32, "s32": np.int32, "s64": np.int64,
          "f16": np.float16, "f32": np.float32, "f16x2": np.uint32}
_DTYPES = {"p": np.bool_, "h": np.uint16, "r": np.uint32, "f": np.float32, "q": np.uint64}


class Fault(AssertionError):
    """An error of the code: the hardware would fail, or not do what was meant."""


class Memory:
    """Global memory with guards around every array in it."""

    def __init__(self) -> None:
        self.bytes = np.full(_GUARD, 0xFF, np.uint8)
        self._places: list[tuple[int, int]] = []

    def add(self, array: np.ndarray) -> int:
        """Places an array in memory and returns its address."""
        start = len(self.bytes)
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        fill = np.full(-len(data) % _GUARD + _GUARD, 0xFF, np.uint8)
        self.bytes = np.concatenate([self.bytes, data, fill])
        self._places.append((start, len(data)))
        return start

    def read(self, address: int, like: np.ndarray) -> np.ndarray:
        return self.bytes[address:address + like.nbytes].view(like.dtype).reshape(like.shape)

    def check(self, addresses: np.ndarray, size: int) -> None:
        if (addresses % size).any():
            raise Fault(f"an address that is no multiple of {size}")
        for start, length in self._places:
            if ((addresses >= start) & (addresses + size <= start + length)).all():
                return
        raise Fault("an access beside the arrays")


_PLAIN: dict[str, Callable[..., np.ndarray]] = {
    "mov": lambda a: a, "add": np.add, "add.rn": np.add, "sub.rn": np.subtract,
    "mul.rn": np.multiply, "mul.lo": np.multiply, "and": np.bitwise_and,
    "shr": np.right_shift, "shl": np.left_shift, "not": np.logical_not,
    "neg": np.negative, "abs": np.abs, "max.NaN": np.maximum, "min.NaN": np.minimum,
    "mad.lo": lambda a, b, c: a * b + c}
"""What instructions of a name without a type compute."""


class Warp:
    """A warp with its registers, and for each lane the index of its next instruction."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.lanes = number * WARP + np.arange(WARP, dtype=np.uint32)
        self.registers: dict[str, np.ndarray] = {}
        self.places = np.zeros(WARP, np.int64)
        self.alive = np.ones(WARP, bool)
        self.copies: list[list[Callable[[], None]]] = [[]]


class Machine:
    """An interpreter for a kernel.

    code: the kernel's instructions.
    memory: global memory.
    parameters: addresses by name.
    shared_bytes: bytes of shared memory.
    late: true where copies are carried out as late as possible.
    backward: true where the last warp runs first.
    products, loads: multiply-adds, and loads from shared memory, by the number of the warp, of all
    work-groups.
    """

    def __init__(self, code: Code, memory: Memory, parameters: Mapping[str, int],
                 shared_bytes: int, *, late: bool = False, backward: bool = False) -> None:
        self._code = code.instructions
        self._labels = {instruction.operands[0]: place
                        for place, instruction in enumerate(self._code)
                        if instruction.name == "label"}
        self._memory, self._parameters = memory, parameters
        self._shared_bytes, self._late, self._backward = shared_bytes, late, backward
        self.products, self.loads = Counter[int](), Counter[int]()

    def launch(self, groups: Sequence[int], group: int) -> None:
        for y in range(groups[1]):
            for x in range(groups[0]):
                self._run((x, y), [Warp(number) for number in range(group // WARP)])

    def _run(self, group: tuple[int, int], warps: list[Warp]) -> None:
        self._shared = np.full(self._shared_bytes, 0xFF, np.uint8)
        for warp in warps:
            warp.registers = {name: np.broadcast_to(np.uint32(value), WARP) for name, value in (
                ("%tid.x", warp.lanes), ("%ctaid.x", group[0]), ("%ctaid.y", group[1]),
                ("shared_memory", 0))}
        order = warps[::-1] if self._backward else warps
        while any(waiting := [self._until_barrier(warp) for warp in order]):
            if not all(waiting):
                raise Fault("a barrier that some warps do not come to")

    def _until_barrier(self, warp: Warp) -> bool:
        """Runs a warp and returns whether it came to a barrier; otherwise it has ended."""
        while warp.alive.any():
            place = int(warp.places[warp.alive].min())
            active = warp.alive & (warp.places == place)
            instruction = self._code[place]
            warp.places[active] = place + 1
            self.products[warp.number] += instruction.name.startswith("fma")
            if instruction.name == "bar.sync":
                if not np.array_equal(active, warp.alive):
                    raise Fault("a barrier that part of a warp comes to")
                return True
            self._step(warp, instruction, active)
        if any(warp.copies):
            raise Fault("copies under way at the end")
        return False

    def _step(self, warp: Warp, instruction: Instruction, active: np.ndarray) -> None:
        name, operands, guard = instruction
        if guard:
            enabled = warp.registers[guard.lstrip("!")] != guard.startswith("!")
            if name == "bra.uni" and len(set(enabled[active].tolist())) > 1:
                raise Fault("a uniform jump that part of a warp takes")
            active = active & enabled
            if name.startswith("ld."):
                # lanes that do not load have any number there: here one that spoils each result
                unknown = np.full(WARP, 0xFFFFFFFF, np.uint32)
                warp.registers.setdefault(str(operands[0]), unknown.view(
                    _DTYPES[str(operands[0])[0]]))
        if not active.any() or name == "label":
            return
        if name in ("bra", "bra.uni"):
            warp.places[active] = self._labels[operands[0]]
        elif name == "exit":
            warp.alive &= ~active
        elif name.startswith("cp.async"):
            self._copy(warp, name, operands, active)
        elif name.startswith(("st.", "ld.")):
            self._move(warp, name, operands, active)
        elif isinstance(operands[0], tuple):
            words = self._value(warp, operands[1], np.dtype(np.uint32))
            for index, target in enumerate(operands[0]):
                self._set(warp, target, (words >> 16 * index).astype(np.uint16), active)
        else:
            self._set(warp, operands[0], self._compute(warp, name, operands[1:]), active)

    def _set(self, warp: Warp, register: Operand, value: np.ndarray, active: np.ndarray) -> None:
        assert isinstance(register, str)
        dtype = np.dtype(_DTYPES[register[0]])
        lanes = warp.registers.setdefault(register, np.zeros(WARP, dtype))
        np.copyto(lanes, value, casting="unsafe", where=active)

    def _value(self, warp: Warp, operand: Operand, dtype: np.dtype) -> np.ndarray:
        if isinstance(operand, Bits):
            return np.full(WARP, operand, np.uint32).view(np.float32)
        if isinstance(operand, int):
            return np.full(WARP, operand).astype(dtype)
        assert isinstance(operand, str)
        value = warp.registers[operand]
        # numbers of the same size are reinterpreted, as signed or unsigned
        return value.view(dtype) if value.dtype.itemsize == dtype.itemsize else value.astype(dtype)

    def _compute(self, warp: Warp, name: str, operands: Sequence[Operand]) -> np.ndarray:
        base, _, kind = name.rpartition(".")
        dtype = np.dtype(_TYPES[kind])

        def value(index: int, operand_type: np.dtype = dtype) -> np.ndarray:
            return self._value(warp, operands[index], operand_type)

        if base.startswith("setp"):
            compare = {"lt": np.less, "ge": np.greater_equal, "eq": np.equal}[base.split(".")[1]]
            result = compare(value(0), value(1))
            return result & warp.registers[str(operands[2])] if ".and" in base else result
        if base == "selp":
            return np.where(warp.registers[str(operands[2])], value(0), value(1))
        if base in ("mul.wide", "mad.wide"):
            wide = np.dtype(f"{dtype.kind}8")
            result = value(0).astype(wide) * value(1).astype(wide)
            return result if base == "mul.wide" else result + value(2, wide)
        if base == "mul.hi":
            return (value(0).astype(np.uint64) * value(1).astype(np.uint64)) >> np.uint64(32)
        if name == "fma.rn.f16x2":
            return _fma_halves(value(0), value(1), value(2))
        if name == "cvt.rn.f16x2.f32":
            floats = (self._value(warp, operand, np.dtype(np.float32)) for operand in operands)
            high, low = (np.float16(value).view(np.uint16) for value in floats)
            return high.astype(np.uint32) << 16 | low
        if name == "cvt.f32.f16":
            return self._value(warp, operands[0], np.dtype(np.uint16)).view(np.float16)
        if name == "cvt.u64.u32":
            return value(0)
        if base == "fma.rn":
            wide = [value(index).astype(np.float64) for index in range(3)]
            return (wide[0] * wide[1] + wide[2]).astype(np.float32)
        return _PLAIN[base](*(value(index) for index in range(len(operands))))

    def _addresses(self, warp: Warp, address: Operand, active: np.ndarray) -> np.ndarray:
        assert isinstance(address, Address)
        return warp.registers[address.base][active].astype(np.int64) + address.offset

    def _move(self, warp: Warp, name: str, operands: Sequence[Operand],
              active: np.ndarray) -> None:
        action, space, *_, kind = name.split(".")
        self.loads[warp.number] += (action, space) == ("ld", "shared")
        address, target = (operands if action == "st" else operands[::-1])
        if space == "param":
            assert isinstance(address, Address)
            self._set(warp, target, np.uint64(self._parameters[address.base]), active)
            return
        registers = target if isinstance(target, tuple) else (target,)
        dtype = np.dtype({"b32": np.uint32, "f32": np.float32}[kind])
        addresses = self._addresses(warp, address, active)
        space_bytes = self._checked(space, addresses, dtype.itemsize * len(registers))
        words = space_bytes.view(dtype)
        for index, register in enumerate(registers):
            places = addresses // 4 + index
            if action == "st":
                words[places] = self._value(warp, register, dtype)[active]
            else:
                loaded = np.zeros(WARP, dtype)
                loaded[active] = words[places]
                self._set(warp, register, loaded.view(_DTYPES[str(register)[0]]), active)

    def _checked(self, space: str, addresses: np.ndarray, size: int) -> np.ndarray:
        if space == "global":
            self._memory.check(addresses, size)
            return self._memory.bytes
        if (addresses % size).any() or addresses.min() < 0 or (
                addresses.max() + size > len(self._shared)):
            raise Fault("an access beside shared memory")
        return self._shared

    def _copy(self, warp: Warp, name: str, operands: Sequence[Operand],
              active: np.ndarray) -> None:
        if name == "cp.async.commit_group":
            warp.copies.append([])
        elif name == "cp.async.wait_group":
            left = operands[0]
            assert isinstance(left, int)
            # the last list has the copies that are not committed yet
            finished = len(warp.copies) - 1 - left
            for group in warp.copies[:max(finished, 0)]:
                for action in group:
                    action()
                group.clear()
        else:
            size = operands[2]
            assert isinstance(size, int)
            if name.startswith("cp.async.cg") and size != 16:
                raise Fault("a copy past the first cache that is not of 16 bytes")
            targets, sources = (self._addresses(warp, operand, active) for operand in operands[:2])
            shared = self._checked("shared", targets, size)
            self._memory.check(sources, size)
            to_bytes, from_bytes = (addresses[:, None] + np.arange(size)
                                    for addresses in (targets, sources))

            def copy() -> None:
                shared[to_bytes] = self._memory.bytes[from_bytes]

            if self._late:
                shared[to_bytes] = 0xFF
                warp.copies[-1].append(copy)
            else:
                copy()


def _fma_halves(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    wide = [np.ascontiguousarray(operand).view(np.float16).astype(np.float64)
            for operand in (a, b, c)]
    with np.errstate(over="ignore"):
        return (wide[0] * wide[1] + wide[2]).astype(np.float16).view(np.uint32)
