"""Calls of code generated for the host's CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

_TASK = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


class Function:
    """A generated function in memory.

    The function is called with the address of its arguments, the first task, the end of the tasks
    (exclusive), and the address of scratch memory.

    address: address of the code.
    """

    def __init__(self, address: int) -> None:
        self.address = address
        self.call = _TASK(address)


@dataclass(frozen=True)
class Job:
    """A call of a generated function.

    arguments: the arguments as 64-bit integers, such as addresses.
    count: number of tasks.
    grain: number of tasks that a thread claims at a time.
    scratch: bytes of scratch memory per thread.
    """

    function: Function
    arguments: Sequence[int]
    count: int
    grain: int = 1
    scratch: int = 0
