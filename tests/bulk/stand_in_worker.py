"""The process of a stand-in for a GPU, which computes nothing and takes a time for each batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np

from gossamer.io.shared_memory import Place
from gossamer.plan import group_worker
from tests.bulk.stand_in_device import StandInDevice, wait_until

SECONDS = "STAND_IN_SECONDS"
"""The environment variable with the seconds of a batch."""


class _Worker(group_worker.Worker):
    """A worker that writes the first pixel of each image as its output."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.at_once = 3
        self._stand_in = StandInDevice()
        self._seconds = float(os.environ[SECONDS])

    def begin(self, batch: int, choices: Place,
              places: Sequence[Place]) -> Callable[[], object]:
        given, result = (self._memory.view(place.start, shape, dtype)
                         for place, shape, dtype in zip(
                             places, self._shapes(batch), (np.uint8, np.float32), strict=True))
        end = self._stand_in.queue(self._seconds)

        def collect() -> None:
            wait_until(end)
            result[:, 0] = given.reshape(batch, -1)[:, 0]

        return collect

    def _shapes(self, batch: int) -> list[tuple[int, ...]]:
        return [(batch, *info.shape[1:]) for info in (
            *self._graph.network_inputs, *self._graph.network_outputs)]  # type: ignore[misc]


def work() -> None:
    """Serves the parent process."""
    group_worker.Worker = _Worker  # type: ignore[misc]
    group_worker.work()
