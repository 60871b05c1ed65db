"""Computation of a network on the rows or pictures of a Ray data set.

The network is sent to each worker once. For each kind of device, the first worker measures
candidates, and the other workers use its measurements.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.device.registry import find
from gossamer.errors import GossamerError, InputError, quoted
from gossamer.io.images import Preprocessing, open_image
from gossamer.model.graph import Graph
from gossamer.model.photos import as_taken
from gossamer.plan.api import compile as compile_plan
from gossamer.plan.plan import Plan
from gossamer.plan.store import plan_file
from gossamer.plan.store.tuning_cache import exported, take
from gossamer.ray.cluster import Workers, connect

_LEASE_S = 900.0
"""Time in seconds after which a worker that still measures counts as lost, and another worker
measures instead."""
_POLL_S = 0.5
"""Seconds between two requests for the measurements of another worker."""


@dataclass(frozen=True)
class Shipped:
    """A network as it is sent to the workers.

    network: name of a network of the zoo, bytes of an ONNX file or of a saved plan, or a graph.
    is_plan: whether `network` contains the bytes of a saved plan.
    device: name of each worker's device.
    effort: effort of the measurements for each kind of device; None to measure nothing.
    """

    network: str | bytes | Graph
    is_plan: bool
    device: str
    effort: str | None

    @staticmethod
    def of(model: Any, device: str | None, effort: str | None) -> Shipped:
        """Prepare a network for sending it to the workers.

        Parameters
        ----------
        model : Plan, Graph, str, Path or bytes
            A plan, or a model that `gossamer.load` accepts: a file name, the name of a network of
            the zoo, or an ONNX model as bytes. This process reads the file.
        device : str, optional
            The device of each worker; by default the plan's device if `model` is a plan, else the
            best device of the machine that calls this function.
        effort : str, optional
            Effort of the measurements for each kind of device; see `gossamer.compile`.

        Returns
        -------
        Shipped
            The network.

        Raises
        ------
        InputError
            A file cannot be read.
        """
        is_plan = isinstance(model, Plan) or str(model).endswith(plan_file.SUFFIX)
        if isinstance(model, Plan):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, f"network{plan_file.SUFFIX}")
                model.save(path)
                return Shipped(path.read_bytes(), True, device or model.device.name, None)
        if isinstance(model, str | os.PathLike) and Path(model).suffix in (
                ".onnx", plan_file.SUFFIX):
            try:
                model = Path(model).read_bytes()
            except OSError as error:
                raise InputError(f"{model}: {error.strerror}") from None
        return Shipped(model, is_plan, device or find().name, effort)

    def opened(self, measured: Any, batch: int) -> Plan:
        """Return the plan of a worker.

        The worker measures candidates, or uses another worker's measurements.

        Parameters
        ----------
        measured : actor
            The actor of class `Measured`, which keeps the measurements of all kinds of devices.
        batch : int
            The batch size for which candidates are measured.

        Returns
        -------
        Plan
            The plan.

        Raises
        ------
        GossamerError
            The network or the device cannot be used.
        """
        if self.is_plan:
            assert isinstance(self.network, bytes)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, f"network{plan_file.SUFFIX}")
                path.write_bytes(self.network)
                return Plan.load(path, self.device)
        device = find(self.device)
        if self.effort is None:
            return compile_plan(self.network, device)
        import ray

        me, kind = uuid.uuid4().hex, repr(device.kind)
        found, is_mine = ray.get(measured.ask.remote(kind, me))
        while found is None and not is_mine:
            time.sleep(_POLL_S)
            found, is_mine = ray.get(measured.ask.remote(kind, me))
        if found is not None:
            take(device, found)
        plan = compile_plan(self.network, device, effort=self.effort)
        plan.program(batch)
        if is_mine:
            ray.get(measured.keep.remote(kind, exported(device)))
        return plan


class Measured:
    """The measurements of each kind of device, made by the first worker with such a device."""

    def __init__(self) -> None:
        self._found: dict[str, bytes] = {}
        self._leases: dict[str, tuple[str, float]] = {}

    def ask(self, kind: str, worker: str) -> tuple[bytes | None, bool]:
        """Return the measurements of a kind of device, or whether to make them.

        Parameters
        ----------
        kind : str
            The kind of device.
        worker : str
            Identifier of the calling worker.

        Returns
        -------
        tuple of bytes or None, and bool
            The measurements, if they are known, and whether this worker must make them.
        """
        if kind in self._found:
            return self._found[kind], False
        holder, until = self._leases.get(kind, (worker, 0.0))
        if holder == worker or time.monotonic() > until:
            self._leases[kind] = worker, time.monotonic() + _LEASE_S
            return None, True
        return None, False

    def keep(self, kind: str, found: bytes) -> None:
        """Store the measurements of a worker.

        Parameters
        ----------
        kind : str
            The kind of device.
        found : bytes
            The measurements, as `gossamer cache export` writes them.
        """
        self._found[kind] = found


Columns = dict[str, np.ndarray]
"""The columns of a block by name, each with one row per sample."""


def map_batches(dataset: Any, model: Any, *, batch: int = 64, device: str | None = None,
                workers: int | None = None, effort: str | None = None) -> Any:
    """Compute a network on the rows of a data set.

    Each worker is an actor with a GPU or a share of the CPUs, and opens the plan once. If a worker
    is lost, another one repeats its work.

    Parameters
    ----------
    dataset : ray.data.Dataset
        A data set with a column for each input of the network, named like the input. Each row is
        one sample without a batch dimension. Other columns are kept.
    model : Plan, Graph, str, Path or bytes
        The network or plan, which is sent to each worker.
    batch : int, default 64
        Number of rows per batch.
    device : str, optional
        The device of each worker, such as "cuda" or "host"; by default the plan's device if `model`
        is a plan, else the best device of the machine that calls this function.
    workers : int, optional
        Maximum number of workers. For CUDA devices, the default is one worker per GPU of the
        cluster. For other devices, it is one worker per processor, except for one processor that
        Ray needs.
    effort : str, optional
        Effort of the measurements before a plan is chosen, once for each kind of device.

    Returns
    -------
    ray.data.Dataset
        The rows in order, in which a column for each output replaces the columns of the inputs. As
        in every Ray data set, the rows are computed when they are read.

    Raises
    ------
    InputError
        Ray is not installed, an argument is wrong, or `device` is a GPU and no worker has one.
    """
    return _Mapping(_BlockWorker, batch, device, workers, effort).over(dataset, model)


def map_pictures(dataset: Any, model: Any, prepare: Preprocessing, *, batch: int = 64,
                 device: str | None = None, workers: int | None = None,
                 effort: str | None = None) -> Any:
    """Compute a network on picture files listed in a data set.

    The workers read the files, so every worker must have access to all files.

    Parameters
    ----------
    dataset : ray.data.Dataset
        A data set with a column "file", the names of the picture files. Other columns are kept.
    model : Plan, Graph, str, Path or bytes
        The network, or a plan.
    prepare : Preprocessing
        How pictures are prepared.
    batch : int, default 64
        Number of pictures per batch.
    device : str, optional
        The device of each worker; see `map_batches`.
    workers : int, optional
        Maximum number of workers; see `map_batches`.
    effort : str, optional
        Effort of the measurements; see `map_batches`.

    Returns
    -------
    ray.data.Dataset
        The rows in order, with a column "error" and a column for each output. For an unreadable
        picture, "error" contains the reason and the outputs are zeros. For all other pictures,
        "error" is empty.

    Raises
    ------
    InputError
        Ray is not installed, an argument is wrong, or `device` is a GPU and no worker has one.
    """
    return _Mapping(_PictureWorker, batch, device, workers, effort, (prepare,)).over(dataset, model)


@dataclass(frozen=True)
class _Mapping:
    """The settings for mapping a data set.

    worker: class of the workers.
    batch: number of rows in a block.
    device: name of each worker's device, or None for the default of `Shipped.of`.
    workers: maximum number of workers, or None for as many as the cluster supports.
    effort: effort of the measurements for each kind of device, or None.
    more: further arguments of the class's constructor.
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
    """A worker that opens its plan once, and computes blocks of rows."""

    def __init__(self, shipped: Any, measured: Any, batch: int) -> None:
        self._plan = _fetched(shipped).opened(measured, batch)

    def __call__(self, block: Columns) -> Columns:
        names = [info.name for info in self._plan.inputs]
        absent = [name for name in names if name not in block]
        if absent:
            raise InputError(f"the data set has no column {quoted(absent[0])} for this input of "
                             f"{self._plan.graph.name}; columns of the data set: "
                             f"{', '.join(map(quoted, block))}")
        others = {name: values for name, values in block.items() if name not in names}
        return {**others, **_outputs(self._plan, *(block[name] for name in names))}


class _PictureWorker:
    """A worker that computes its plan on the picture files of a block."""

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
    """Return the network from Ray's object store."""
    import ray

    network = ray.get(shipped)
    assert isinstance(network, Shipped)
    return network


def _outputs(plan: Plan, *inputs: np.ndarray) -> Columns:
    result = plan(*inputs)
    results = result if isinstance(result, tuple) else (result,)
    return {info.name: values for info, values in zip(plan.outputs, results, strict=True)}
