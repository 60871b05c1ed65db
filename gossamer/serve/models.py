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
    """A network that is ready: its plan, and how pictures are prepared for it, where that is
    known."""

    plan: Plan | PlanGroup
    prepare: Preprocessing | None


@dataclass(frozen=True)
class BatchOptions:
    """The options of the batchers: seconds, the largest batch, and how many images may wait."""

    latency: float | None = None
    most: int = 64
    queue: int = 1024


class ServedModel:
    """One network behind its name.

    files: the files that it was read from, which are looked at when it is to be read again.
    load: reads it. plan, batcher: what computes it now.
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
        """Returns the time of change and the size of each file; None where it is gone."""
        stamps: list[tuple[int, int] | None] = []
        for file in self._files:
            try:
                status = file.stat()
                stamps.append((status.st_mtime_ns, status.st_size))
            except OSError:
                stamps.append(None)
        return stamps

    def renewed(self) -> ServedModel | None:
        """Returns the network as its changed files hold it; None where they have not changed.
        Raises GossamerError where it cannot be read."""
        if self._stamps_now() == self._stamps:
            return None
        return ServedModel(self.name, self._files, self._load, self._options)

    def close(self) -> None:
        """Computes what waits, and frees the memory of the devices."""
        self.batcher.close()
        self.plan.close()

    def description(self) -> dict[str, Any]:
        """Returns what the protocol tells of a network."""
        return {"name": self.name, "versions": [], "platform": "gossamer",
                "inputs": [described(info) for info in self.plan.inputs],
                "outputs": [described(info) for info in self.plan.outputs]}

    def picture(self, body: bytes) -> dict[str, np.ndarray]:
        """Returns the input for a picture, as bytes of a file. Raises InputError where it cannot be
        read, or the network takes none."""
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
        """Returns the networks whose files have changed, read again; one that cannot be read stays
        as it is, with a line in the log."""
        found = {}
        for name, model in self.by_name.items():
            try:
                if (renewed := model.renewed()) is not None:
                    found[name] = renewed
            except GossamerError as error:
                logger.error("%s stays as it was: %s", name, error)
        return found

    def close(self) -> None:
        """Ends all batchers."""
        for model in self.by_name.values():
            model.close()
