"""Computes a network on the rows or the pictures of a data set of Ray.

Each worker gets the network once. The first worker with a kind of device measures, and the others
take its measurements.
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
"""Seconds after which a measuring worker counts as lost, so that another worker measures."""
_POLL_S = 0.5
"""Seconds between two requests for the measurements of another worker."""


@dataclass(frozen=True)
class Shipped:
    """A network as it is sent to the workers.

    network: name of a network of the zoo, bytes of an ONNX file or of a saved plan, or a graph.
    is_plan: whether `network` holds the bytes of a saved plan.
    device: name of each worker's device.
    effort: how much each kind of device measures; None where nothing is measured.
    """

    network: str | bytes | Graph
    is_plan: bool
    device: str
    effort: str | None

    @staticmethod
    def of(model: Any, device: str | None, effort: str | None) -> Shipped:
        """Return a network as it is sent to the workers.

        Parameters
        ----------
        model : Plan, Graph, str, Path or bytes
            A plan, or a model that `gossamer.load` accepts: the name of a file, which this process
            reads, the name of a network of the zoo, or an ONNX model as bytes.
        device : str, optional
            The device of each worker; by default the plan's device if `model` is a plan, else the
            best device of the machine that calls this function.
        effort : str, optional
            How much each kind of device measures, as for `gossamer.compile`.

        Returns
        -------
        Shipped
            The network.

        Raises
        ------
        InputError
            If a file cannot be read.
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
        """Return the plan of a worker. The worker measures, or takes another worker's measurements.

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
            If the network or the device cannot be used.
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
        """Return the measurements of a kind of device, and whether this worker has to make them.

        Parameters
        ----------
        kind : str
            The kind of device.
        worker : str
            Identifier of the worker that asks.

        Returns
        -------
        tuple of bytes or None, and bool
            The measurements, if they are known; whether this worker is to make them.
        """
        if kind in self._found:
            return self._found[kind], False
        holder, until = self._leases.get(kind, (worker, 0.0))
        if holder == worker or time.monotonic() > until:
            self._leases[kind] = worker, time.monotonic() + _LEASE_S
            return None, True
        return None, False

    def keep(self, kind: str, found: bytes) -> None:
        """Keep the measurements of a worker.

        Parameters
        ----------
        kind : str
            The kind of device.
        found : bytes
            The measurements, as `gossamer cache export` writes them.
        """
        self._found[kind] = found


Columns = dict[str, np.ndarray]
"""The columns of a block by name, each with one row for each sample."""


def map_batches(dataset: Any, model: Any, *, batch: int = 64, device: str | None = None,
                workers: int | None = None, effort: str | None = None) -> Any:
    """Compute a network on the rows of a data set.

    Each worker is an actor with a GPU or a share of the processors, and opens the plan once. If a
    worker is lost, another one repeats its work.

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
