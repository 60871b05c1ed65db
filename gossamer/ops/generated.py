"""Base classes of algorithms whose code is generated and compiled by LLVM."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.host import address_of
from gossamer.device.jobs import Function, Job
from gossamer.device.native import processor as native
from gossamer.device.native.threads import Jobs
from gossamer.ops.algorithm import Algorithm, State


class GeneratedCode(Algorithm):
    """An algorithm that only calls generated code."""

    def supports(self, problem: Any, device: Device) -> str | None:
        return native.unavailable(device) or self.refused(problem)

    def refused(self, problem: Any) -> str | None:
        """Return why generated code cannot compute a problem; None if it can."""
        return None

    @abc.abstractmethod
    def jobs(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
             workspace: Buffer | None, images: int | None = None) -> list[Job]:
        """Return the calls of generated code that `launch` runs."""

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        Jobs(self.jobs(state, inputs, outputs, workspace), state.data.threads).run()


class Work(NamedTuple):
    """A generated function that computes a tensor, and how it is called.

    code: the function.
    threads: number of threads among which the tasks are divided.
    tasks: number of tasks.
    arguments: the arguments of the function. A number is an index among the buffers of a launch,
    its inputs and then its output; an array or a buffer is a constant.
    """

    code: Function
    threads: int
    tasks: int
    arguments: Sequence[int | np.ndarray | Buffer] = (0, 1)


class OneCall(GeneratedCode):
    """An algorithm that calls one function; `State.data` is a `Work`."""

    def jobs(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
             workspace: Buffer | None, images: int | None = None) -> list[Job]:
        work: Work = state.data
        buffers = [*inputs, *outputs]
        arguments = tuple(
            native.address(argument) if isinstance(argument, np.ndarray) else
            address_of(buffers[argument] if isinstance(argument, int) else argument)
            for argument in work.arguments)
        return [Job(work.code, arguments, work.tasks)] if work.tasks else []
