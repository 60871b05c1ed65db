"""Base classes of algorithms whose code is generated and compiled by LLVM."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

from gossamer.device.base import Buffer
from gossamer.device.host import address_of
from gossamer.device.jobs import Function, Job
from gossamer.device.native.threads import Jobs
from gossamer.ops.algorithm import Algorithm, State


class GeneratedCode(Algorithm):
    """An algorithm that only calls generated code."""

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
    """

    code: Function
    threads: int
    tasks: int


class OneTensor(GeneratedCode):
    """An algorithm with one input and one output; `State.data` is a `Work`."""

    def jobs(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
             workspace: Buffer | None, images: int | None = None) -> list[Job]:
        work: Work = state.data
        arguments = (address_of(inputs[0]), address_of(outputs[0]))
        return [Job(work.code, arguments, work.tasks)] if work.tasks else []
