"""The networks that a server offers, each with its batcher; changed files are read again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.errors import GossamerError, InputError
from gossamer.io.images import Preprocessing, decode_image
from gossamer.model.photos import as_taken
from gossamer.plan.batcher import Batcher
from gossamer.plan.plan import Plan
from gossamer.plan.plan_group import PlanGroup
from gossamer.serve.protocol import described

logger = logging.getLogger("gossamer.serve")


@dataclass(frozen=True)
class Loaded:
    """A network that is ready.

    plan: the plan that computes the network.
    prepare: how pictures are prepared for the network; None where no preparation is known.
    """

    plan: Plan | PlanGroup
    prepare: Preprocessing | None


@dataclass(frozen=True)
class BatchOptions:
    """The options of the batchers.

    latency: seconds within which results are wanted; None without a limit.
    most: the largest batch, in images.
    queue: number of images that may wait.
    """

    latency: float | None = None
    most: int = 64
    queue: int = 1024


class ServedModel:
    """A network that a server offers under a name.

    files: the network's files; where they have changed, the network can be read again.
    load: function that reads the network.
    plan: the plan that computes the network now.
    batcher: the batcher that makes batches of the requests for this plan.
    """

    def __init__(self, name: str, files: Sequence[Path], load: Callable[[], Loaded],
                 options: BatchOptions) -> None:
        self.name = name
        self._files = files
        self._load = load
        self._options = options
        self._stamps = self._stamps_now()
        loaded = load()
        self.plan = loaded.plan
        self._prepare = loaded.prepare
        self.batcher = Batcher(self.plan, options.latency, most=options.most, queue=options.queue)

    def _stamps_now(self) -> list[tuple[int, int] | None]:
        """Returns the time of change and the size of each file; None for a file that is gone."""
        stamps: list[tuple[int, int] | None] = []
        for file in self._files:
            try:
                status = file.stat()
                stamps.append((status.st_mtime_ns, status.st_size))
            except OSError:
                stamps.append(None)
        return stamps

    def renewed(self) -> ServedModel | None:
        """Returns the network, read again from its changed files; None where they have not changed.
        Raises GossamerError where the network cannot be read."""
        if self._stamps_now() == self._stamps:
            return None
        return ServedModel(self.name, self._files, self._load, self._options)

    def close(self) -> None:
        """Computes the requests that wait, then frees the memory of the devices."""
        self.batcher.close()
        self.plan.close()

    def description(self) -> dict[str, Any]:
        """Returns the protocol's description of the network."""
        return {"name": self.name, "versions": [], "platform": "gossamer",
                "inputs": [described(info) for info in self.plan.inputs],
                "outputs": [described(info) for info in self.plan.outputs]}

    def picture(self, body: bytes) -> dict[str, np.ndarray]:
        """Returns the network's input for a picture. body: the bytes of the picture's file. Raises
        InputError where the picture cannot be read, or where no preparation is known."""
        info = self.plan.graph.inputs[0]
        if self._prepare is None:
            raise InputError(f"{self.name}: nothing is known of how pictures are prepared; send "
                             "tensors, or start the server with --preprocess")
        return {info.name: as_taken(self._prepare, info, decode_image(body))[None]}


class Models:
    """The networks of a server, by name."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.by_name: dict[str, ServedModel] = {model.name: model for model in models}

    def renewals(self) -> Mapping[str, ServedModel]:
        """Returns the networks whose files have changed, read again. A network that cannot be read
        is left out, with a line in the log."""
        found = {}
        for name, model in self.by_name.items():
            try:
                if (renewed := model.renewed()) is not None:
                    found[name] = renewed
            except GossamerError as error:
                logger.error("%s stays as it was: %s", name, error)
        return found

    def close(self) -> None:
        """Closes all networks."""
        for model in self.by_name.values():
            model.close()
