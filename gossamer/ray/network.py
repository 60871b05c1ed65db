"""A network as it is sent to the workers of a Ray cluster, and the measurements that they share."""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossamer.device.registry import find
from gossamer.errors import InputError
from gossamer.model.graph import Graph
from gossamer.plan.api import compile as compile_plan
from gossamer.plan.plan import Plan
from gossamer.plan.store import plan_file
from gossamer.plan.store.tuning_cache import exported, take

_LEASE_S = 900.0
"""Seconds after which a worker that measures counts as lost; then another worker measures."""
_POLL_S = 0.5
"""Seconds between two requests for the measurements of another worker."""


@dataclass(frozen=True)
class Shipped:
    """A network as it is sent to the workers.

    network: name of a network of the zoo, bytes of an ONNX file or of a saved plan, or a graph.
    is_plan: whether `network` is a saved plan.
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
