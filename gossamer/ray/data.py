"""Computes a network on the rows or the pictures of a data set of Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gossamer.errors import GossamerError, InputError, quoted
from gossamer.io.images import Preprocessing, open_image
from gossamer.model.photos import as_taken
from gossamer.plan.plan import Plan
from gossamer.ray.cluster import Workers, connect
from gossamer.ray.network import Measured, Shipped

Columns = dict[str, np.ndarray]
"""The columns of a block by name, each with one row for each sample."""


def map_batches(dataset: Any, model: Any, *, batch: int = 64, device: str | None = None,
                workers: int | None = None, effort: str | None = None) -> Any:
    """Compute a network on the rows of a data set.

    Each worker is an actor with a GPU or a share of the processors, and opens the plan once. The
    work of a worker that is lost is done again.

    Parameters
    ----------
    dataset : ray.data.Dataset
        A data set with a column for each input of the network, under the input's name; each row
        holds one sample, without a batch dimension. Other columns stay.
    model : Plan, Graph, str, Path or bytes
        The network, or a plan, which is sent to each worker.
    batch : int, default 64
        Number of rows that are computed at once.
    device : str, optional
        The device of each worker, such as "cuda" or "host"; by default the plan's device if `model`
        is a plan, else the best device of the machine that calls this function.
    workers : int, optional
        The most workers; by default one for each GPU of the cluster, or one for each processor
        except one, which Ray needs.
    effort : str, optional
        How much is measured before a plan is chosen, once for each kind of device.

    Returns
    -------
    ray.data.Dataset
        The rows in their order, with a column for each output in place of the inputs. As in every
        data set of Ray, the rows are computed when they are read.

    Raises
    ------
    InputError
        If Ray is not installed, an argument is wrong, or `device` is a GPU and no worker has one.
    """
    return _Mapping(_BlockWorker, batch, device, workers, effort).over(dataset, model)


def map_pictures(dataset: Any, model: Any, prepare: Preprocessing, *, batch: int = 64,
                 device: str | None = None, workers: int | None = None,
                 effort: str | None = None) -> Any:
    """Compute a network on the pictures whose files a data set names.

    The workers read the files, which must lie where every worker can read them.

    Parameters
    ----------
    dataset : ray.data.Dataset
        A data set with a column "file", the names of the picture files; other columns stay.
    model : Plan, Graph, str, Path or bytes
        The network, or a plan.
    prepare : Preprocessing
        How pictures are prepared.
    batch : int, default 64
        Number of pictures that are computed at once.
    device : str, optional
        The device of each worker, as for `map_batches`.
    workers : int, optional
        The most workers, as for `map_batches`.
    effort : str, optional
        How much is measured, as for `map_batches`.

    Returns
    -------
    ray.data.Dataset
        The rows in their order, with a column "error" and a column for each output. "error" says
        why a picture cannot be read, and is empty for other pictures. The outputs of a picture that
        cannot be read are zeros.

    Raises
    ------
    InputError
        If Ray is not installed, an argument is wrong, or `device` is a GPU and no worker has one.
    """
    return _Mapping(_PictureWorker, batch, device, workers, effort, (prepare,)).over(dataset, model)


@dataclass(frozen=True)
class _Mapping:
    """The settings with which a data set is mapped.

    worker: class of the workers.
    batch: number of rows in a block.
    device: name of each worker's device, or None for the default of `Shipped.of`.
    workers: the most workers, or None for as many as the cluster has room for.
    effort: how much each kind of device measures, or None.
    more: further arguments of the class.
    """

    worker: type
    batch: int
    device: str | None
    workers: int | None
    effort: str | None
    more: Sequence[Any] = ()

    def over(self, dataset: Any, model: Any) -> Any:
        ray = connect()
        if self.batch < 1:
            raise InputError(f"batch is {self.batch}, expected 1 or more")
        shipped = Shipped.of(model, self.device, self.effort)
        workers = Workers.of(ray.cluster_resources(), shipped.device, self.workers)
        measured = ray.remote(num_cpus=0)(Measured).remote()
        dataset.context.execution_options.preserve_order = True
        return dataset.map_batches(
            self.worker, batch_size=self.batch, batch_format="numpy",
            fn_constructor_args=(ray.put(shipped), measured, self.batch, *self.more),
            num_cpus=workers.processors, num_gpus=workers.gpus or None, concurrency=workers.count)


class _BlockWorker:
    """A worker that gets its plan once, and computes blocks of rows with it."""

    def __init__(self, shipped: Any, measured: Any, batch: int) -> None:
        self._plan = _fetched(shipped).opened(measured, batch)

    def __call__(self, block: Columns) -> Columns:
        names = [info.name for info in self._plan.inputs]
        absent = [name for name in names if name not in block]
        if absent:
            raise InputError(f"the data set has no column {quoted(absent[0])}, which is an input "
                             f"of {self._plan.graph.name}; its columns: "
                             f"{', '.join(map(quoted, block))}")
        others = {name: values for name, values in block.items() if name not in names}
        return {**others, **_outputs(self._plan, *(block[name] for name in names))}


class _PictureWorker:
    """A worker that reads the picture files of a block, and computes its plan on the pictures."""

    def __init__(self, shipped: Any, measured: Any, batch: int, prepare: Preprocessing) -> None:
        self._plan = _fetched(shipped).opened(measured, batch)
        self._prepare = prepare

    def __call__(self, block: Columns) -> Columns:
        pictures: list[np.ndarray] = []
        errors: list[str] = []
        for file in block["file"].tolist():
            try:
                pictures.append(as_taken(self._prepare, self._plan.graph.inputs[0],
                                         open_image(file)))
                errors.append("")
            except GossamerError as error:
                errors.append(str(error).removeprefix(f"{file}: "))
        is_read = np.array([not error for error in errors])
        outputs: Columns = {}
        computed = _outputs(self._plan, np.stack(pictures)) if pictures else {
            info.name: np.zeros((0, *(size or 1 for size in info.shape[1:])), info.dtype)
            for info in self._plan.outputs}
        for name, values in computed.items():
            outputs[name] = np.zeros((len(errors), *values.shape[1:]), values.dtype)
            outputs[name][is_read] = values
        return {**block, "error": np.array(errors, dtype=object), **outputs}


def _fetched(shipped: Any) -> Shipped:
    """Return the network that lies in Ray's object store."""
    import ray

    network = ray.get(shipped)
    assert isinstance(network, Shipped)
    return network


def _outputs(plan: Plan, *inputs: np.ndarray) -> Columns:
    result = plan(*inputs)
    results = result if isinstance(result, tuple) else (result,)
    return {info.name: values for info, values in zip(plan.outputs, results, strict=True)}
