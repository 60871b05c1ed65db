"""Algorithms whose code LLVM generates for this processor."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

from gossamer.device.base import Buffer
from gossamer.device.jobs import Job
from gossamer.device.native.threads import Jobs
from gossamer.ops.algorithm import Algorithm, State


class GeneratedCode(Algorithm):
    """An algorithm that only calls generated code, by the threads that its state's data names."""

    @abc.abstractmethod
    def jobs(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
             workspace: Buffer | None, images: int | None = None) -> list[Job]:
        """Return the calls of generated code."""

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        Jobs(self.jobs(state, inputs, outputs, workspace), state.data.threads).run()
