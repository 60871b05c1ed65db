"""The networks that a server offers, each with its batcher; changed files are read again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.errors import GossamerError, InputError
from gossamer.io.images import LONGEST, Preprocessing, decode_image
from gossamer.model.graph import ValueInfo
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
        logger.info("%s: reads %s", name, ", ".join(map(str, files)) or "the network")
        loaded = load()
        self.plan = loaded.plan
        self._prepare = loaded.prepare
        logger.info("%s: measures sizes of batches", name)
        self.batcher = Batcher(self.plan, options.latency, most=options.most, queue=options.queue)
        logger.info("%s: ready", name)

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

    def config(self) -> dict[str, Any]:
        """Returns the network's configuration as Triton's extension of the protocol has it."""
        infos = (self.plan.inputs, self.plan.outputs)
        # the sizes leave out a batch that is free
        is_free = all(info.shape[:1] == (None,) for group in infos for info in group)
        inputs, outputs = (
            [{"name": each["name"], "data_type": f"TYPE_{each['datatype']}",
              "dims": each["shape"][int(is_free):]} for each in map(described, group)]
            for group in infos)
        return {"name": self.name, "platform": "gossamer", "backend": "gossamer",
                "max_batch_size": self._options.most if is_free else 0,
                "input": inputs, "output": outputs}

    def picture(self) -> Picture:
        """Returns how the network's input is made of a picture. Raises InputError where no
        preparation is known."""
        if self._prepare is None:
            raise InputError(f"{self.name}: nothing is known of how pictures are prepared; send "
                             "tensors, or start the server with --preprocess")
        return Picture(self.plan.graph.inputs[0], self._prepare)


@dataclass(frozen=True)
class Picture:
    """A network's input, and how a picture is prepared for it."""

    info: ValueInfo
    prepare: Preprocessing

    def arrays(self, body: bytes, most_pixels: int) -> dict[str, np.ndarray]:
        """Returns the input for the picture whose file has these bytes. Raises InputError where the
        picture cannot be read, and ImageSizeError where it has more pixels than `most_pixels`."""
        photo = decode_image(body, most_pixels=most_pixels, longest=LONGEST)
        return {self.info.name: as_taken(self.prepare, self.info, photo)[None]}


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
            except Exception:
                logger.exception("%s stays as it was", name)
        return found

    def close(self) -> None:
        """Closes all networks."""
        for model in self.by_name.values():
            model.close()
