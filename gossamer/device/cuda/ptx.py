"""PTX programs as lists of instructions, which code generators write and nvjitlink.py assembles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Bits(int):
    """A float32 literal, given by its bits."""


class Address(NamedTuple):
    """A memory operand: a base register or variable, plus an offset in bytes."""

    base: str
    offset: int = 0


Operand = str | int | Bits | Address | tuple[str, ...]
"""An operand: the name of a register, special register, label or parameter; a number; an address;
or a vector of registers."""


class Instruction(NamedTuple):
    """An instruction, or the definition of a label.

    The definition of a label has the name "label" and the label as its operand.

    guard: name of a predicate register, or "" for no guard. The instruction executes only if the
    register is true; with the prefix "!", only if the register is false.
    """

    name: str
    operands: tuple[Operand, ...] = ()
    guard: str = ""


_TYPES = {"p": "pred", "h": "b16", "r": "b32", "f": "f32", "q": "b64"}
"""PTX types of registers by the first letter of their names."""


class Code:
    """The instructions of one function, and the names of its registers."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self._counts: dict[str, int] = defaultdict(int)
        self._labels = 0

    def register(self, kind: str) -> str:
        """Return the name of a new register.

        kind: p (predicate), h, r, q (16, 32, 64 bits) or f (float32).
        """
        self._counts[kind] += 1
        return f"{kind}{self._counts[kind] - 1}"

    def label(self) -> str:
        """Return a new label."""
        self._labels += 1
        return f"L{self._labels - 1}"

    def emit(self, name: str, *operands: Operand, guard: str = "") -> None:
        """Append an instruction."""
        self.instructions.append(Instruction(name, operands, guard))

    def place(self, label: str) -> None:
        """Define a label at the current end of the code."""
        self.instructions.append(Instruction("label", (label,)))

    def get(self, name: str, kind: str, *operands: Operand, guard: str = "") -> str:
        """Append an instruction, and return the new register that holds its result."""
        result = self.register(kind)
        self.instructions.append(Instruction(name, (result, *operands), guard))
        return result

    def divided(self, number: str, by: int) -> tuple[str, str]:
        """Append a division by a constant, and return the registers of quotient and remainder.

        Emits a multiplication by the reciprocal, because ptxas does not optimise divisions by
        constants.

        number: register with a number below 2^31.
        """
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
        """Append a branch.

        when: guard of the branch; see Instruction.
        uniform: whether the branch is uniform: all lanes of a warp take it or none does.
        """
        self.emit("bra.uni" if uniform else "bra", target, guard=when)

    def dispatch(self, index: str, targets: Sequence[str], first: int = 0) -> None:
        """Append branches that lead to one of the targets, chosen by the number in a register.

        index: the register. All lanes of a warp must have the same number in this register.
        first: the number that leads to the first target; the next number leads to the second, and
        so on.
        """
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
        """Return the declarations of the registers and the instructions, one per line."""
        declared = [f".reg .{_TYPES[kind]} {kind}<{count}>;"
                    for kind, count in self._counts.items()]
        return "\n".join([*declared, *map(_line, self.instructions)])


@dataclass(frozen=True)
class PtxProgram:
    """A kernel as PTX: its name, and its text without the header lines .version and .target."""

    name: str
    text: str


def kernel(name: str, parameters: Sequence[str], code: Code, work_group: int,
           blocks_per_unit: int) -> PtxProgram:
    """Return a kernel whose parameters are pointers.

    The code may use the array `shared_memory`, whose size is given with each launch.

    work_group: number of work-items in a work-group.
    blocks_per_unit: number of work-groups that must fit on a multiprocessor at once. This number
    limits the registers of a work-item.
    """
    declarations = ", ".join(f".param .u64 {parameter}" for parameter in parameters)
    return PtxProgram(name, f""".extern .shared .align 16 .b8 shared_memory[];
.visible .entry {name}({declarations})
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
    texts = ", ".join(map(_operand, operands))
    return f"@{guard} {name} {texts};" if guard else f"{name} {texts};"


def _operand(operand: Operand) -> str:
    if isinstance(operand, Bits):
        return f"0f{operand:08X}"
    if isinstance(operand, Address):
        return f"[{operand.base}+{operand.offset}]"
    return "{" + ", ".join(map(str, operand)) + "}" if isinstance(operand, tuple) else str(operand)
