"""PTX as data: what generators of code write, and what nvjitlink.py assembles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Bits(int):
    """A 32-bit float literal by its bits."""


class Address(NamedTuple):
    """Memory at a register's value plus bytes."""

    base: str
    offset: int = 0


Operand = str | int | Bits | Address | tuple[str, ...]
"""A register, special register, label or parameter by name; a number; a vector of registers."""


class Instruction(NamedTuple):
    """An instruction, or with the name "label" the place of its one operand. guard: the predicate
    register under which it runs, "!" before it for the opposite."""

    name: str
    operands: tuple[Operand, ...] = ()
    guard: str = ""


_TYPES = {"p": "pred", "h": "b16", "r": "b32", "f": "f32", "q": "b64"}
"""What the first letter of a register's name says of it."""


class Code:
    """The instructions of one function, and the names of its registers."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self._counts: dict[str, int] = defaultdict(int)
        self._labels = 0

    def register(self, kind: str) -> str:
        """A new register: p (predicate), h, r, q (16, 32, 64 bits) or f (float32)."""
        self._counts[kind] += 1
        return f"{kind}{self._counts[kind] - 1}"

    def label(self) -> str:
        self._labels += 1
        return f"L{self._labels - 1}"

    def emit(self, name: str, *operands: Operand, guard: str = "") -> None:
        self.instructions.append(Instruction(name, operands, guard))

    def place(self, label: str) -> None:
        self.instructions.append(Instruction("label", (label,)))

    def get(self, name: str, kind: str, *operands: Operand) -> str:
        """The new register in which an instruction leaves its result."""
        result = self.register(kind)
        self.instructions.append(Instruction(name, (result, *operands)))
        return result

    def divided(self, number: str, by: int) -> tuple[str, str]:
        """Quotient and remainder of a register's number below 2^31, by multiplication: the
        assembler itself divides by constants as by any number."""
        if by == 1:
            return number, self.get("mov.u32", "r", 0)
        if by & (by - 1) == 0:
            return (self.get("shr.u32", "r", number, by.bit_length() - 1),
                    self.get("and.b32", "r", number, by - 1))
        shift = (by - 1).bit_length()
        multiplier = -(-(1 << (31 + shift)) // by)
        high = self.get("mul.hi.u32", "r", self.get("shl.b32", "r", number, 1), multiplier)
        quotient = self.get("shr.u32", "r", high, shift)
        return quotient, self.get("mad.lo.s32", "r", quotient, -by, number)

    def jump(self, target: str, when: str = "", uniform: bool = True) -> None:
        """A jump, which a whole warp takes or not where it is uniform."""
        self.emit("bra.uni" if uniform else "bra", target, guard=when)

    def dispatch(self, index: str, targets: Sequence[str], first: int = 0) -> None:
        """A jump to one of the targets by a register's number, the same in a whole warp."""
        if len(targets) == 1:
            self.jump(targets[0])
            return
        middle = len(targets) // 2
        upper = self.label()
        self.jump(upper, self.get("setp.ge.u32", "p", index, first + middle))
        self.dispatch(index, targets[:middle], first)
        self.place(upper)
        self.dispatch(index, targets[middle:], first + middle)

    def text(self) -> str:
        """Declarations of the registers and the instructions, one a line."""
        declared = [f".reg .{_TYPES[kind]} {kind}<{count}>;"
                    for kind, count in self._counts.items()]
        return "\n".join([*declared, *map(_line, self.instructions)])


@dataclass(frozen=True)
class PtxProgram:
    """A kernel as PTX without its header: name, and the text from .visible on."""

    name: str
    text: str


def kernel(name: str, parameters: Sequence[str], code: Code, work_group: int,
           blocks_per_unit: int) -> PtxProgram:
    """A kernel of pointers and of `shared_memory`, whose size its launch says; for groups of so
    many work-items, of which a multiprocessor must hold `blocks_per_unit` at once."""
    listed = ", ".join(f".param .u64 {each}" for each in parameters)
    return PtxProgram(name, f""".extern .shared .align 16 .b8 shared_memory[];
.visible .entry {name}({listed})
.maxntid {work_group}, 1, 1
.minnctapersm {blocks_per_unit}
{{
{code.text()}
}}
""")


def _line(instruction: Instruction) -> str:
    name, operands, guard = instruction
    if name == "label":
        return f"{operands[0]}:"
    shown = ", ".join(map(_operand, operands))
    return f"@{guard} {name} {shown};" if guard else f"{name} {shown};"


def _operand(operand: Operand) -> str:
    if isinstance(operand, Bits):
        return f"0f{operand:08X}"
    if isinstance(operand, Address):
        return f"[{operand.base}+{operand.offset}]"
    return "{" + ", ".join(map(str, operand)) + "}" if isinstance(operand, tuple) else str(operand)
