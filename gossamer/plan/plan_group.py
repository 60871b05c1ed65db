"""PlanGroup: plans of one network on several devices, which share the work."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.device.base import Device
from gossamer.device.registry import find_several
from gossamer.errors import GossamerError, GossamerWarning, InputError
from gossamer.model.graph import Graph, ValueInfo
from gossamer.plan.plan import Plan
from gossamer.plan.run.calls import check_pinned
from gossamer.plan.run.context import single
from gossamer.plan.run.device_workers import Closable, Member, Members
from gossamer.plan.run.stream import ResultStream

if TYPE_CHECKING:
    from gossamer.plan.report.report import Report


class PlanGroup(Closable):
    """One network on several devices in one process.

    A call, or a batch of a stream, goes to an idle worker. A device that fails is left out with a
    warning, and another device computes the call or batch again. `gossamer.compile` makes a group
    for several devices; `PlanGroup.load` makes a group from a saved plan.

    Parameters
    ----------
    plans : sequence of Plan
        A plan of the same network for each device. A plan that is listed twice counts as two
        workers.

    Attributes
    ----------
    plans : tuple of Plan
        The plans, in the order of the devices.

    Raises
    ------
    InputError
        If there are no plans, if a plan is closed, or if ONNX Runtime computes the end of the
        network.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.plans = tuple(plans)
        if not self.plans:
            raise InputError("a group needs at least one plan; give one for each device")
        self.members = self._members()
        weakref.finalize(self, self.members.end).atexit = False
        self._plan_of: dict[Member, Plan] = dict(zip(self.members.all, self.plans, strict=True))

    def _members(self) -> Members:
        """Return the devices; each has its own process if that makes the group faster."""
        from gossamer.plan import group_processes

        calls = [plan.calls("be shared by several devices") for plan in self.plans]
        if group_processes.have_processes([plan.device for plan in self.plans]):
            try:
                return group_processes.DeviceProcesses(self.plans)
            except (OSError, GossamerError) as error:
                warnings.warn(f"the devices share one process, because memory cannot be shared "
                              f"with others: {error}", GossamerWarning, stacklevel=4)
        return Members(list(map(Member, calls)))

    @classmethod
    def of(cls, devices: Sequence[Device], make: Callable[[Device], Plan]) -> PlanGroup:
        """Make a group with one plan for each device.

        Parameters
        ----------
        devices : sequence of Device
            The devices; a device that is named twice has one plan.
        make : callable
            Makes the plan of a device.

        Returns
        -------
        PlanGroup
            The group. Candidates are measured once for each kind of device.

        Raises
        ------
        GossamerError
            What `make` raises.
        """
        plans: dict[str, Plan] = {}
        first: dict[tuple[str, str, int], Plan] = {}
        group = []
        for device in devices:
            key = f"{device.name} {id(device)}"
            if key not in plans:
                plan = plans[key] = make(device)
                plan.choose_beside(first.setdefault(device.kind, plan))
            group.append(plans[key])
        return cls(group)

    @classmethod
    def load(cls, path: str | Path, devices: str | Sequence[str | Device], *,
             strict: bool = False, threads: int | str | None = None) -> PlanGroup:
        """Read a saved plan for several devices of its kind.

        Parameters
        ----------
        path : str or Path
            The file that `Plan.save` wrote.
        devices : str or sequence of str or Device
            The devices, as `gossamer.compile` accepts them.
        strict : bool, default False
            Whether a layer that a device cannot run is an error.
        threads : int or "all", optional
            As for `Plan.load`.

        Returns
        -------
        PlanGroup
            The group; nothing is measured.

        Raises
        ------
        InputError, DeviceError
            As `Plan.load` does, for the first unsuitable device.
        """
        return cls.of(find_several(devices),
                      lambda device: Plan.load(path, device, strict=strict, threads=threads))

    def __repr__(self) -> str:
        """Return the names of the network and the devices."""
        return f"<PlanGroup of {self.graph.name} on {self.device_names}>"

    def _repr_html_(self) -> str:
        """Return the notebook view: names and the report of the first device."""
        return self._first().html(repr(self))

    @property
    def graph(self) -> Graph:
        """The network."""
        return self.plans[0].graph

    @property
    def inputs(self) -> list[ValueInfo]:
        """The inputs of the network, as `Plan.inputs`."""
        return self.plans[0].inputs

    @property
    def outputs(self) -> list[ValueInfo]:
        """The outputs of the network, as `Plan.outputs`."""
        return self.plans[0].outputs

    @property
    def device_names(self) -> str:
        """The devices that take part, separated by commas."""
        return ", ".join(member.calls.device.name for member in self.members.usable)

    @property
    def device_descriptions(self) -> str:
        """The distinct names of the hardware, separated by commas."""
        return ", ".join(dict.fromkeys(plan.device.description for plan in self.plans))

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Compute the outputs on the least busy device.

        This is the device with the fewest calls in progress.

        Parameters
        ----------
        *inputs : array
            One array in host memory for each input of the network, as for `Plan.__call__`.
        **named : array
            The inputs by name, instead of `inputs`.

        Returns
        -------
        array or tuple of array
            The outputs, as a plan returns them.

        Raises
        ------
        InputError
            If the inputs are invalid, or the group is closed.
        DeviceError
            If two devices fail to compute the call; the error of the first one is raised.
        """
        return self.members.call(inputs, named)

    async def run_async(self, *inputs: Any, **named: Any) -> Any:
        """Compute the network's outputs without blocking the event loop.

        Parameters
        ----------
        *inputs : array
            One array for each input of the network.
        **named : array
            The inputs by name, instead of `inputs`.

        Returns
        -------
        array or tuple of array
            What a call of the group returns.

        Raises
        ------
        InputError, DeviceError
            As a call of the group does.
        """
        import asyncio

        return await asyncio.to_thread(self, *inputs, **named)

    def stream(self, batches: Iterable[Any], depth: int = 3, *,
               errors: str = "raise") -> ResultStream:
        """Compute many batches on all devices; return an iterator of the results.

        Parameters
        ----------
        batches : iterable
            The batches in order, as for `Plan.stream`, in host memory.
        depth : int, default 3
            Number of batches that each device has at once. At most `2 * depth` batches for each
            device are in memory, however slowly results are taken.
        errors : {"raise", "return"}, default "raise"
            What happens if two devices fail to compute a batch, or if a batch does not fit the
            network, as for `Plan.stream`.

        Returns
        -------
        ResultStream
            An iterator of the results in the order of the batches.

        Raises
        ------
        InputError
            If an argument is invalid, or the group is closed.
        """
        for plan in self.plans:
            plan.calls("be streamed")
        return ResultStream(self.members, batches, depth, errors, self)

    def pinned(self, batch: int) -> Any:
        """Return page-locked arrays for inputs.

        The devices read page-locked memory at the full speed of their buses. Fill the arrays in
        place, and call or stream the group with them. The CPU then copies nothing, even if each
        device has its own process. The arrays stay valid when the group is closed.

        Parameters
        ----------
        batch : int
            The number of images, 1 or more.

        Returns
        -------
        numpy.ndarray or tuple of numpy.ndarray
            The input's array of zeros, or a tuple of arrays for several inputs.

        Raises
        ------
        InputError
            If the batch size is less than 1, if the network does not support it, or if the group is
            closed.
        OutOfMemoryError
            If the memory of the arrays cannot be page-locked.
        """
        for plan in self.plans:
            plan.calls("have pinned inputs")
        check_pinned(batch)
        return single(self.members.pinned(batch))

    def report(self, batch: int | None = None) -> Report:
        """Return the first device's report, with a note on all devices.

        Parameters
        ----------
        batch : int, optional
            The number of images; by default the last batch size that was computed. If none was
            computed, the default is that of `Plan.report`.

        Returns
        -------
        Report
            The report of the first plan that takes part.
        """
        return self._with_notes(self._first().report(batch))

    def profile(self, batch: int | None = None) -> Report:
        """Measure the time of every step on the first device.

        Parameters
        ----------
        batch : int, optional
            The number of images; by default the last batch size that was computed. If none was
            computed, the default is that of `Plan.report`.

        Returns
        -------
        Report
            The report of the first plan that takes part, with its times in microseconds.
        """
        first = self._first()
        try:
            return self._with_notes(first.profile(batch))
        finally:
            self.members.free_contexts(first.calls("be profiled"))

    def _first(self) -> Plan:
        return self._plan_of[self.members.usable[0]]

    def _with_notes(self, report: Report) -> Report:
        report.notes.append(f"shared by {len(self.members.usable)} workers: {self.device_names}")
        left_out = [f"{member.calls.device.name} is left out: {member.problem}"
                    for member in self.members.all if member.problem]
        report.notes.extend(left_out)
        report.warnings.extend(left_out)
        return report

    def close(self) -> None:
        """Free the device memory of all calls; later calls raise InputError.

        Raises
        ------
        DeviceError
            If a device fails.
        """
        self.members.close()
        for plan in self.plans:
            plan.close()
