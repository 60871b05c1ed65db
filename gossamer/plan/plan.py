"""Plan: a network with an algorithm and prepared weights for every layer, on one device."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gossamer import debug
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import DeviceError, InputError, UnsupportedError
from gossamer.measure import Timing, called, scatter_notice
from gossamer.model.formats import format_lines
from gossamer.model.graph import Graph, ValueInfo, as_called
from gossamer.model.infer.resolve import check_batch, default_batch
from gossamer.ops.host_threads import ALL
from gossamer.plan.callable_plan import CallablePlan
from gossamer.plan.choose.outcomes import EndToEnd, Planned
from gossamer.plan.choose.planner import Planner
from gossamer.plan.choose.saved_options import StoredChoices, stored, used_algorithms
from gossamer.plan.fusion import check_library_layers
from gossamer.plan.lower.rules import optimised_for
from gossamer.plan.policy import ANY, Policy
from gossamer.plan.program import Layer, Program
from gossamer.plan.report.part_notes import check_parts, part_notes
from gossamer.plan.run.calls import Calls, TailCalls
from gossamer.plan.run.context import Context
from gossamer.plan.store import plan_file

if TYPE_CHECKING:
    from gossamer.plan.choose.calibration import Calibration
    from gossamer.plan.report.report import Report
    from gossamer.plan.tune.tuner import Tuner

_MOST_PROGRAMS = 64
"""Maximum number of batch sizes whose programs are kept."""


class Plan(CallablePlan):
    """A network that runs on one device.

    The plan has a few contexts for each batch size, so that threads and streams do not wait for
    each other. `plan(x)` uses one of them; `context` makes a context that only its caller uses.
    Plans are made with `gossamer.compile` or, from a file, with `Plan.load`.

    Parameters
    ----------
    graph : Graph
        The network, as `gossamer.load` returns it.
    device : Device
        The device that runs the network.
    policy : Policy, optional
        The user's decisions about the choice of algorithms.
    tuner : Tuner, optional
        Measures the candidates of every layer; by default a tuner with the policy's effort, or no
        tuner if the policy has no effort.
    choices : StoredChoices, optional
        The choices of a saved plan, which are used instead of new choices.
    note : callable, optional
        Called with a line of text before each measurement of a layer or a plan.

    Attributes
    ----------
    choosing : Plan
        The plan that `choose_beside` named; this plan itself if that method was not called.

    Raises
    ------
    InputError
        If the policy's calibration inputs do not fit the network.
    """

    def __init__(self, graph: Graph, device: Device, policy: Policy = ANY, *,
                 tuner: Tuner | None = None, choices: StoredChoices | None = None,
                 note: Callable[[str], None] = debug.logger.info) -> None:
        # imported here, because plans without an effort measure nothing and need no tuner
        if tuner is None and policy.effort is not None:
            from gossamer.plan.tune.tuner import Tuner

            tuner = Tuner(device, policy.effort, precision=policy.precision, note=note,
                          keeps_precisions=policy.tolerance is not None,
                          budget_s=policy.budget_s, threads=policy.threads)
        self.calibration: Calibration | None = None
        if policy.calibration is not None:
            from gossamer.plan.choose.calibration import Calibration

            self.calibration = Calibration(graph, policy.calibration, policy.tolerance)
        # a graph with stored choices was optimised before the choices were made
        self.graph = optimised_for(graph, device, policy.precision) if choices is None else graph
        self._called = as_called(graph)
        self.device = device
        self.policy = policy
        self.tuner = tuner
        self._choices = choices
        self._note = note
        self._planner = Planner(self.graph, device, tuner, choices, policy, self.calibration, note)
        self._planned: OrderedDict[int, Planned] = OrderedDict()
        self._calls = Calls(self.graph, device, self.context) if graph.tail is None else TailCalls(
            self.graph, graph.tail, device, self.context, policy.threads)
        self._timings: dict[int, list[Timing]] = {}
        self._end_to_end: dict[int, EndToEnd] = {}
        self._call_us: dict[int, float] = {}
        self._lock = threading.RLock()
        self.choosing = self
        if policy.strict and graph.tail is not None:
            check_parts(graph)
        if choices is None:
            check_library_layers(self.graph, self.layers)

    def __repr__(self) -> str:
        """Return the names of the network and the device."""
        return f"<Plan of {self.graph.name} on {self.device.name}>"

    def _repr_html_(self) -> str:
        """Return the notebook view: names and the report of a planned batch size."""
        return self.html(repr(self))

    def html(self, title: str) -> str:
        """Return the notebook view, without measuring candidates.

        Parameters
        ----------
        title : str
            The line above the report.

        Returns
        -------
        str
            The report of the last computed batch size. If that size is not planned, the report of
            the last planned size. If an effort is given and no size is planned, a sentence says so.
        """
        from gossamer.plan.report.html import paragraph

        with self._lock:
            batch = self._batch_or_last(None)
            if self._planned and batch not in self._planned:
                batch = next(reversed(self._planned))
            is_planned = self.tuner is None or batch in self._planned
        shown = self.report(batch)._repr_html_() if is_planned else paragraph(
            f"nothing is planned yet: the first call measures its batch size; report({batch}) "
            f"measures batch {batch}")
        return f"{paragraph(title)}\n{shown}"

    def choose_beside(self, other: Plan) -> None:
        """Let this plan and another plan choose algorithms one at a time.

        If one plan has measured candidates for a batch size, the other plan does not measure them
        again.

        Parameters
        ----------
        other : Plan
            A plan of the same network on a device of the same kind. Neither plan has chosen
            anything yet.
        """
        self._lock = other._lock
        self.choosing = other

    def save(self, path: str | Path) -> None:
        """Write the plan to a file.

        An existing file is replaced as a whole, or stays unchanged if an error occurs.

        The file contains the optimised network with its weights, and the choices of every batch
        size planned so far. If none is planned, the default batch size of `report` is planned
        first.

        Parameters
        ----------
        path : str or Path
            The file to write.

        Raises
        ------
        InputError
            If the file cannot be written.
        """
        with self._lock:
            choices = self.choices()
            head = plan_file.header(
                self.device, self.policy.strict, used_algorithms(choices, self.device),
                self.policy.threads)
            plan_file.write(Path(path), head, self.graph, choices)

    def choices(self) -> Mapping[str, Any]:
        """Return all layers' algorithms for every planned batch size.

        Returns
        -------
        mapping of str to mapping
            The choices as JSON values, by batch size. If no size is planned, the default batch
            size of `report` is planned first.
        """
        with self._lock:
            if self._own_choices is not None:
                return self._own_choices.plain
            if not self._planned:
                self.program(self._batch_or_last(None))
            return stored({batch: planned.program
                           for batch, planned in self._planned.items()}, self.device)

    @classmethod
    def load(cls, path: str | Path, device: str | Device | None = None, *,
             strict: bool = False, threads: int | str | None = None) -> Plan:
        """Read a plan that save() wrote.

        Nothing is measured: a batch size that was not planned takes the choices of the nearest
        planned batch size, and report() says so. A plan of the host is valid for any number of
        processors and threads; report() warns if either number has changed.

        Parameters
        ----------
        path : str or Path
            The file to read.
        device : str or Device, optional
            A device of the kind that the plan was made for; by default the device with the name
            that is in the file.
        strict : bool, default False
            Whether a layer that the device cannot run is an error, as for `gossamer.compile`, even
            if the plan was made without this restriction.
        threads : int or "all", optional
            Threads of a layer on the host, as for `gossamer.compile`; by default those with which
            the plan was made.

        Returns
        -------
        Plan
            The plan, with the programs of all batch sizes that were planned.

        Raises
        ------
        InputError
            If the file is not a plan or is damaged, or if the plan was made for another device,
            with another driver, toolkit or gossamer, or with algorithms or libraries that have
            changed.
        DeviceError
            If the device does not exist.
        """
        path = Path(path)
        head, graph, plain = plan_file.read(path)
        with plan_file.checked(path):
            name, description = (str(head["device"][key]) for key in ("name", "description"))
        if device is None:
            try:
                device = find(name)
            except DeviceError as error:
                raise DeviceError(f"{path}: was made for {name} ({description}): {error}") from None
        opened_device = device if isinstance(device, Device) else find(device)
        with plan_file.checked(path):
            notices = plan_file.check_origin(path, head, opened_device,
                                             used_algorithms(plain, opened_device))
            plan = cls(graph, opened_device, Policy(
                strict=strict or head["strict"],
                threads=head.get("threads", ALL) if threads is None else threads),
                       choices=StoredChoices(path, plain, notices, threads=threads))
            for batch in plan.planned_batches:
                plan.program(batch)
        return plan

    @property
    def planned_batches(self) -> list[int]:
        """The batch sizes for which algorithms have been chosen.

        Returns
        -------
        list of int
            Numbers of images, in increasing order.
        """
        with self._lock:
            return sorted(self._planned if self._own_choices is None
                          else self._own_choices.batches)

    @property
    def inputs(self) -> list[ValueInfo]:
        """The inputs of the network.

        Returns
        -------
        list of ValueInfo
            Name, shape (None for the batch dimension) and dtype of each input, in order, as
            `plan(x)` accepts it.
        """
        return self._called.network_inputs

    @property
    def outputs(self) -> list[ValueInfo]:
        """The outputs of the network.

        Returns
        -------
        list of ValueInfo
            Name, shape (None for the batch dimension) and dtype of each output, in order, as
            `plan(x)` returns it.
        """
        return self._called.network_outputs

    def context(self, batch: int, stream: Any = None) -> Context:
        """Make a context: the buffers of one execution.

        All contexts of the plan share the weights.

        Parameters
        ----------
        batch : int
            The number of images that the context computes at once.
        stream : optional
            The stream on which the context works; by default the device's default stream.

        Returns
        -------
        Context
            The new context.

        Raises
        ------
        InputError
            If the plan is closed.
        UnsupportedError
            If the plan is strict and the device cannot run a layer.
        DeviceError
            If the device fails or has too little memory.
        """
        self._calls.check_usable()
        program = self.program(batch)
        return Context(self.graph, program, self.device, stream)

    def program(self, batch: int) -> Program:
        """Return a batch size's layers with their algorithms.

        Parameters
        ----------
        batch : int
            The number of images.

        Returns
        -------
        Program
            The steps in order. The steps are chosen when the batch size is first used.

        Raises
        ------
        UnsupportedError
            If the plan is strict and a layer falls back to the host.
        InputError
            If the calibration inputs do not fit this batch size.
        """
        return self._plan(batch).program

    def _plan(self, batch: int) -> Planned:
        check_batch(batch)
        with self._lock:
            if batch not in self._planned:
                planned = self._planner.planned(batch)
                if self.policy.strict:
                    check_parts(self.graph)
                host_steps = planned.program.host_steps(self.device)
                if self.policy.strict and host_steps:
                    step = host_steps[0]
                    raise UnsupportedError(
                        f"{self.device.name} cannot run {step.layer.source or step.layer.name} "
                        f"({'; '.join(step.rejected.values())}) and falling back to the host is "
                        "not allowed; omit strict or choose another device")
                while len(self._planned) >= _MOST_PROGRAMS:
                    self._planned.popitem(last=False)
                self._planned[batch] = planned
                if planned.end_to_end is not None:
                    self._end_to_end[batch] = planned.end_to_end
            return self._planned[batch]

    def layers(self, batch: int) -> list[Layer]:
        """Return a batch size's layers before algorithms are chosen.

        Parameters
        ----------
        batch : int
            The number of images.

        Returns
        -------
        list of Layer
            The layers in order.
        """
        return list(self._planner.network(batch).layers)

    def profile(self, batch: int | None = None) -> Report:
        """Measure every step, one execution of all steps, and a call.

        Parameters
        ----------
        batch : int, optional
            The number of images; by default the last batch size that was computed. If none was
            computed, the default is 1, or the file's batch size if the network does not support 1.

        Returns
        -------
        Report
            The report with these times in microseconds. Steps and executions are timed by the
            device's events. A call takes NumPy arrays, and is timed by the host's clock.
        """
        batch = self._batch_or_last(batch)
        context = self._calls.first_context(batch)
        self._end_to_end[batch] = EndToEnd(context.end_to_end())
        self._timings[batch] = context.profile()
        if batch:
            inputs = self.calls("be profiled").page_locked(batch)
            self._call_us[batch] = called(lambda: self(*inputs)).median_us
        return self.report(batch)

    def end_to_end(self, batch: int | None = None) -> Timing:
        """Return the time of one execution between device buffers.

        Later reports contain this time. With a tuner, the time is stored on disk, like the times
        of candidates, and is not measured again.

        Parameters
        ----------
        batch : int, optional
            The number of images; by default the last batch size that was computed. If none was
            computed, the default is 1, or the file's batch size if the network does not support 1.

        Returns
        -------
        Timing
            Median and quartiles in microseconds.

        Raises
        ------
        DeviceError
            If the execution fails.
        """
        batch = self._batch_or_last(batch)
        program = self.program(batch)
        if self.tuner is None:
            # do not hold the lock here: a thread that makes a context may wait for the lock
            if batch not in self._end_to_end:
                self._end_to_end[batch] = EndToEnd(
                    self._calls.first_context(batch).end_to_end())
        else:
            from gossamer.plan.choose.plan_times import end_to_end

            with self._lock:
                if batch not in self._end_to_end:
                    self._end_to_end[batch] = end_to_end(
                        self.graph, [program], self.device, self.tuner, self._note)[0]
        result = self._end_to_end[batch]
        if result.timing is None:
            raise DeviceError(f"{self.graph.name} at batch {batch} on {self.device.name}: "
                              f"{result.failure}")
        return result.timing

    def report(self, batch: int | None = None) -> Report:
        """Return the algorithm and the device of each layer.

        Parameters
        ----------
        batch : int, optional
            The number of images; by default the last batch size that was computed. If none was
            computed, the default is 1, or the file's batch size if the network does not support 1.

        Returns
        -------
        Report
            One row for each step, with times if that batch size was measured or profiled.
        """
        from gossamer.plan.report.report import make_report

        batch = self._batch_or_last(batch)
        planned = self._plan(batch)
        unprofiled: list[str] = []
        if self.tuner is not None and batch not in self._timings and any(
                step.layer.members for step in planned.program.steps):
            # the times of single layers of a part are known only from a profile
            try:
                self._timings[batch] = self._calls.first_context(batch).profile()
            except InputError as error:
                # a profile runs on random inputs; layers that read indices may reject them
                unprofiled.append(f"the times of single layers are missing: {error}")
        report = replace(
            make_report(planned, self.device, self._timings.get(batch),
                        self._end_to_end.get(batch)),
            call_us=self._call_us.get(batch))
        warnings = [notice for source in (self._choices, self.tuner) if source is not None
                    for notice in source.notices]
        scattered = scatter_notice(self._timings.get(batch, ()), self.device)
        if scattered and scattered not in warnings:
            warnings.append(scattered)
        report.notes.extend([*planned.notes, *self.graph.notes, *format_lines(self.graph),
                             *part_notes(self.graph, report.rows), *unprofiled, *warnings])
        report.warnings.extend(warnings)
        return report

    def close(self) -> None:
        """Free the device memory of the plan's calls.

        Later calls raise InputError. Bound calls and contexts from `context` keep their memory and
        stay usable. `with plan:` closes the plan at the end.

        Raises
        ------
        DeviceError
            If the device fails.
        """
        self._calls.close()

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: a plan cannot be pickled or copied."""
        raise TypeError("a plan holds memory of its device and cannot be pickled or copied; "
                        "plan.save(FILE) and Plan.load(FILE) carry it to another process")

    @property
    def memory(self) -> dict[str, int]:
        """The memory that the plan uses on its device.

        Returns
        -------
        dict of str to int
            Bytes of "weights", "activations" and "workspace". Weights include all their packed
            forms and the constants of contexts. On the host, only layers computed on bits have
            packed forms; other layers use the arrays of the file. Activations and workspace are
            summed over the contexts that plan(x) made.
        """
        contexts = self._calls.contexts.all()
        packed = {id(weights): weights for context in contexts for weights in context.steps.weights}
        return {
            "weights": sum(weights.nbytes for weights in packed.values())
            + sum(context.buffers.constant_bytes for context in contexts),
            "activations": sum(context.buffers.activation_bytes for context in contexts),
            "workspace": sum(context.buffers.workspace_bytes for context in contexts),
        }

    @property
    def _own_choices(self) -> StoredChoices | None:
        """The stored choices; None if there are none, or if they are for other input sizes."""
        return None if self._choices is None or self._choices.made_for else self._choices

    def _batch_or_last(self, batch: int | None) -> int:
        if batch is None:
            return self._calls.last_batch or default_batch(self.graph)
        check_batch(batch)
        return batch
