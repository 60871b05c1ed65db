"""`run --ray`: runs a network on the pictures of folders, on the workers of a Ray cluster."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gossamer.cli.row_inputs import Entry, RowInputs, is_table
from gossamer.cli.run_rows import Answer
from gossamer.errors import InputError
from gossamer.io.images import Preprocessing


class RayAnswers:
    """The answers of a cluster's workers, which read the pictures themselves.

    place: two texts that are shown instead of the names and the descriptions of devices.
    model: the file of a saved plan, or the graph of a network.
    device: the device of each worker.
    """

    def __init__(self, address: str, model: Any, inputs: RowInputs, prepare: Preprocessing,
                 device: str | None) -> None:
        from gossamer.ray import connect

        try:
            self._ray = connect(address)
        except InputError as error:
            raise InputError(f"--ray {address}: {error}") from None
        # the verb itself shows how many rows are done
        self._ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.WARNING)
        self._model = model
        self._inputs = inputs
        self._prepare = prepare
        self._device = device
        nodes = sum(node["Alive"] for node in self._ray.nodes())
        self.place = "ray", f"{nodes} machine{'s' if nodes > 1 else ''} of a cluster"

    def answers(self, left: Sequence[int]) -> Iterator[Answer]:
        """Yields in order, batch by batch, the pictures with these indices and their outputs."""
        from gossamer.ray import map_pictures

        if not left:
            return
        data = self._ray.data.from_items(
            [{"index": index, "file": str(self._inputs.names[index])} for index in left],
            override_num_blocks=max(1, len(left) // (4 * self._inputs.batch)))
        rows = map_pictures(data, self._model, self._prepare, batch=self._inputs.batch,
                            device=self._device)
        names = [info.name for info in self._inputs.graph.outputs]
        for block in rows.iter_batches(batch_size=self._inputs.batch, batch_format="numpy"):
            entries = [Entry(int(index), str(error)) for index, error
                       in zip(block["index"], block["error"], strict=True)]
            is_read = np.array([not entry.error for entry in entries])
            yield entries, (tuple(block[name][is_read] for name in names) if is_read.any()
                            else None)


def check(sources: Sequence[str], table: bool) -> None:
    """Raises InputError where inputs or options do not go with a cluster."""
    if any(map(is_table, sources)):
        raise InputError("--ray: is for pictures; a table runs faster on one machine")
    if table:
        raise InputError("--ray: the layers of workers are not timed; leave --table out")
