"""Reads pickles that hold plain data and tensors only.

Python's own unpickler can call anything that it can import, and trusts every size that it reads.
The unpickler here knows only the two dozen opcodes of saved state dicts. It imports nothing, and
calls only the functions that its caller passes.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO


class MalformedPickle(ValueError):
    """A pickle that cannot be read.

    The message is the reason, as the end of a sentence that begins with "it".
    """


@dataclass(frozen=True)
class Name:
    """A function or class that the pickle names, which is never imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"[:120]


_PUSH_ARGUMENT = {
    "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINSTRING", "SHORT_BINSTRING",
    "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT",
}
"""Opcodes that push their argument onto the stack."""
_PUSH_VALUE: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple,
}
"""Opcodes that push a new value on the stack, with the function that makes the value."""
_TUPLE_SIZES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
"""Opcodes that make a tuple of values from the stack, with the length of the tuple."""


def load(stream: BinaryIO, call: Callable[[Name, tuple], Any],
         persistent: Callable[[Any], Any]) -> Any:
    """Return the object of the pickle at the stream's position.

    The stream is moved to the end of this pickle.

    call(name, arguments): returns the result of a function or class that the pickle names; raises
    an error for an unknown name. persistent(id): returns the object that is stored outside the
    pickle under this id.

    Raises MalformedPickle, and the errors of the two functions.
    """
    machine = _Machine(call, persistent)
    try:
        for opcode, argument, _ in pickletools.genops(stream):
            machine.step(opcode.name, argument)
    except IndexError:
        raise MalformedPickle("takes more values than it holds") from None
    except MalformedPickle:
        raise
    except (ValueError, UnicodeDecodeError) as error:
        raise MalformedPickle(f"is damaged ({_one_line(error)})") from None
    if len(machine.stack) != 1 or machine.marked:
        raise MalformedPickle("does not end with a single value")
    return machine.stack[0]


class _Machine:
    """The stack machine that executes a pickle.

    call, persistent: as for load().
    stack: values since the last mark.
    marked: stacks before each mark.
    memo: stored values by their number.
    """

    def __init__(self, call: Callable[[Name, tuple], Any],
                 persistent: Callable[[Any], Any]) -> None:
        self.call = call
        self.persistent = persistent
        self.stack: list[Any] = []
        self.marked: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def step(self, opcode: str, argument: Any) -> None:
        """Execute one instruction."""
        stack = self.stack
        if opcode in _PUSH_ARGUMENT:
            stack.append(argument)
        elif opcode in _PUSH_VALUE:
            stack.append(_PUSH_VALUE[opcode]())
        elif opcode in _TUPLE_SIZES:
            backwards = [stack.pop() for _ in range(_TUPLE_SIZES[opcode])]
            stack.append(tuple(reversed(backwards)))
        elif opcode in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = stack[-1]
        elif opcode == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif opcode in ("BINGET", "LONG_BINGET"):
            if argument not in self.memo:
                raise MalformedPickle(f"refers to value {argument}, which it does not hold")
            stack.append(self.memo[argument])
        elif opcode == "MARK":
            self.marked.append(stack)
            self.stack = []
        elif opcode == "TUPLE":
            values = self._since_mark()
            self.stack.append(tuple(values))
        elif opcode == "LIST":
            values = self._since_mark()
            self.stack.append(values)
        elif opcode == "DICT":
            values = self._since_mark()
            self.stack.append(_with_items({}, values))
        elif opcode == "APPENDS":
            values = self._since_mark()
            _expect(self.stack[-1], list).extend(values)
        elif opcode == "APPEND":
            value = stack.pop()
            _expect(stack[-1], list).append(value)
        elif opcode == "SETITEMS":
            values = self._since_mark()
            _with_items(_expect(self.stack[-1], dict), values)
        elif opcode == "SETITEM":
            value, key = stack.pop(), stack.pop()
            _with_items(_expect(stack[-1], dict), [key, value])
        elif opcode == "GLOBAL":
            stack.append(Name(*argument.split(" ", 1)))
        elif opcode == "STACK_GLOBAL":
            name, module = _expect(stack.pop(), str), _expect(stack.pop(), str)
            stack.append(Name(module, name))
        elif opcode == "REDUCE":
            arguments, function = _expect(stack.pop(), tuple), _expect(stack.pop(), Name)
            stack.append(self.call(function, arguments))
        elif opcode == "BUILD":
            # drop the attributes of the object; only ordered dicts have some: torch's versions
            stack.pop()
            _expect(stack[-1], dict)
        elif opcode == "BINPERSID":
            stack.append(self.persistent(stack.pop()))
        elif opcode not in ("PROTO", "FRAME", "STOP"):
            raise MalformedPickle(f"uses the pickle instruction {opcode}, which plain data does "
                                  "not need; save model.state_dict()")

    def _since_mark(self) -> list[Any]:
        """Return the values since the last mark, and remove the mark from the stack."""
        if not self.marked:
            raise MalformedPickle("takes more values than it holds")
        values, self.stack = self.stack, self.marked.pop()
        return values


def _with_items(target: dict, values: list[Any]) -> dict:
    """Put alternating keys and values into a dict, and return it."""
    if len(values) % 2:
        raise MalformedPickle("has a key without a value")
    for key, value in zip(values[::2], values[1::2], strict=True):
        # allow only these types, because hashing a deeply nested tuple would overflow the C stack
        if type(key) not in (str, int):
            raise MalformedPickle(f"has a dictionary key of type {type(key).__name__}")
        target[key] = value
    return target


def _expect(value: Any, kind: type) -> Any:
    """Return a value that must have exactly this type."""
    if type(value) is not kind:
        raise MalformedPickle(f"has a {type(value).__name__} where a {kind.__name__} belongs")
    return value


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:120]
