"""Calls of code that is generated for processors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

_TASK = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


class Function:
    """A function in memory, called with the address of its arguments, the first task, the end,
    and the address of scratch memory.

    address: where its code begins.
    """

    def __init__(self, address: int) -> None:
        self.address = address
        self.call = _TASK(address)


@dataclass(frozen=True)
class Job:
    """A call of a function of generated code.

    arguments: its arguments as 64-bit integers, such as addresses.
    count: the number of its tasks.
    grain: how many tasks a thread takes at once.
    scratch: bytes of memory that each thread needs meanwhile.
    """

    function: Function
    arguments: Sequence[int]
    count: int
    grain: int = 1
    scratch: int = 0
