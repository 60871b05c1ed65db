"""OpenPlan: a network with open input sizes, and a plan for each size."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gossamer.device.base import Device
from gossamer.errors import InputError, ModelError
from gossamer.io.text import shape_text
from gossamer.model.graph import Graph, ValueInfo, as_called
from gossamer.model.infer.resolve import TRIAL_SIZE, at_size, resolve, with_shapes
from gossamer.plan.choose.saved_options import StoredChoices
from gossamer.plan.fusion import check_library_layers
from gossamer.plan.lower.rules import lower, optimised_for
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy
from gossamer.plan.run.binding import as_called_for, batch_of, in_order
from gossamer.plan.run.bound import BoundCall
from gossamer.plan.run.device_workers import Closable
from gossamer.tensor import AXES

if TYPE_CHECKING:
    from gossamer.plan.report.report import Report

_MOST_PLANS = 16
"""Maximum number of sizes for which plans are kept."""

Sizes = tuple[tuple[int, ...], ...]
"""The shape of each input without the batch, with the axes in the network's order."""


class OpenPlan(Closable):
    """A network with open input sizes, on one device.

    `gossamer.compile` makes an OpenPlan if dimensions other than the batch, such as the height and
    width of images, stay open: the file leaves them open, and `shapes` does not set them. A size is
    planned when it is first used. With an effort, candidates are measured for the first size only.
    At other sizes, each layer uses the first size's choice if this choice fits the layer. The plans
    of the 16 most recently used sizes are kept. `plan.at(x)` returns the plan for the size of x;
    that plan can be saved, profiled and streamed.

    Parameters
    ----------
    graph : Graph
        The network.
    device : Device
        The device that runs the network.
    policy : Policy
        The decisions about the choice of algorithms.

    Attributes
    ----------
    graph : Graph
        The network.
    device : Device
        The device that runs the network.
    """

    def __init__(self, graph: Graph, device: Device, policy: Policy) -> None:
        self.graph = graph
        self.device = device
        self._policy = policy
        self._called = as_called(graph)
        trial = at_size(graph, TRIAL_SIZE)
        check_library_layers(trial, lambda batch: lower(resolve(trial, batch))[0])
        self._plans: OrderedDict[Sizes, Plan] = OrderedDict()
        self._measured: tuple[Sizes, Plan] | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    def __repr__(self) -> str:
        """Return the names of the network and the device."""
        return f"<OpenPlan of {self.graph.name} on {self.device.name}>"

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Compute the network's outputs.

        Parameters
        ----------
        *inputs : array
            The inputs, of any size that the network accepts, as for `Plan.__call__`.
        **options
            Inputs by name, `out` and `stream`, as for `Plan.__call__`.

        Returns
        -------
        array or tuple of array
            The output, or a tuple of several outputs.

        Raises
        ------
        InputError
            If the network does not support inputs of these sizes (the message names the node), or
            if `Plan.__call__` raises an InputError.
        """
        return self._plan_of(inputs, options)(*inputs, **options)

    async def run_async(self, *inputs: Any, **options: Any) -> Any:
        """Compute the network's outputs without blocking the event loop.

        Parameters
        ----------
        *inputs : array
            The inputs, as for a call.
        **options
            Inputs by name, `out` and `stream`, as for `Plan.run_async`.

        Returns
        -------
        array or tuple of array
            What a call returns.
        """
        return await self._plan_of(inputs, options).run_async(*inputs, **options)

    def bind(self, *inputs: Any, **options: Any) -> BoundCall:
        """Check a call once, and return it for repeated use.

        Parameters
        ----------
        *inputs : array
            The inputs, as for a call.
        **options
            Inputs by name, `out` and `stream`, as for `Plan.bind`.

        Returns
        -------
        BoundCall
            The call. It takes no arguments, and returns the outputs.
        """
        return self._plan_of(inputs, options).bind(*inputs, **options)

    def at(self, *inputs: Any, **named: Any) -> Plan:
        """Return the plan for the sizes of the given inputs.

        Parameters
        ----------
        *inputs : array
            One array for each input of the network, as for a call.
        **named : array
            The inputs by name, instead of `inputs`.

        Returns
        -------
        Plan
            The plan. It is made when its sizes are first used.

        Raises
        ------
        InputError
            If the network does not support inputs of these sizes, or the plan is closed.
        """
        return self._plan_of(inputs, named)

    @property
    def inputs(self) -> list[ValueInfo]:
        """The inputs of the network.

        Returns
        -------
        list of ValueInfo
            Name, shape (None for the batch and for open sizes) and dtype of each.
        """
        return self._called.network_inputs

    @property
    def outputs(self) -> list[ValueInfo]:
        """The outputs of the network.

        Returns
        -------
        list of ValueInfo
            Name, shape (None for the batch and for open sizes) and dtype of each.
        """
        return self._called.network_outputs

    def report(self, batch: int | None = None) -> Report:
        """Return the report for the most recently used size.

        Parameters
        ----------
        batch : int, optional
            The number of images; by default the last batch size that was computed.

        Returns
        -------
        Report
            The report of that size's plan.

        Raises
        ------
        InputError
            If nothing was computed yet.
        """
        return self._last().report(batch)

    def profile(self, batch: int | None = None) -> Report:
        """Measure all steps for the most recently used size.

        Parameters
        ----------
        batch : int, optional
            The number of images; by default the last batch size that was computed.

        Returns
        -------
        Report
            The report of that size's plan, with times in microseconds.

        Raises
        ------
        InputError
            If nothing was computed yet.
        """
        return self._last().profile(batch)

    def close(self) -> None:
        """Free the memory of all plans; later calls raise InputError."""
        with self._lock:
            self._is_closed = True
            plans, self._plans = [*self._plans.values()], OrderedDict()
        for plan in plans:
            plan.close()

    def _last(self) -> Plan:
        with self._lock:
            if not self._plans:
                raise InputError(f"{self.graph.name} has dynamic dimensions, and has not been "
                                 "called yet: call the plan first")
            return next(reversed(self._plans.values()))

    def _plan_of(self, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> Plan:
        """Return the plan for the inputs of a call."""
        named = {name: value for name, value in options.items() if name not in ("out", "stream")}
        names = [info.name for info in self._called.network_inputs]
        given = dict(zip(names, in_order(self._called, inputs, named), strict=True))
        # an input that only the tail reads may have any size, because ONNX Runtime computes the
        # tail (the end of the network)
        ordered = as_called_for(self.graph, tuple(given[info.name] for info in self.graph.inputs))
        batch = batch_of(replace(self._called, tail=None), ordered)
        sizes = tuple(_sizes(info, tuple(array.shape))
                      for info, array in zip(self.graph.inputs, ordered, strict=True))
        with self._lock:
            if self._is_closed:
                raise InputError(f"{self.graph.name}: the plan is closed; make another one")
            if sizes not in self._plans:
                self._plans[sizes] = self._made(sizes, batch)
                if len(self._plans) > _MOST_PLANS:
                    self._plans.popitem(last=False)
            self._plans.move_to_end(sizes)
            return self._plans[sizes]

    def _made(self, sizes: Sizes, batch: int) -> Plan:
        names = [info.name for info in self.graph.inputs]
        try:
            graph = with_shapes(self.graph, dict(zip(names, sizes, strict=True)))
            resolve(graph, batch)
        except ModelError as error:
            raise InputError(f"the network does not accept {_text(names, sizes)}: {error}"
                             ) from None
        if self._measured is None:
            plan = Plan(graph, self.device, self._policy)
            if self._policy.effort is not None:
                self._measured = sizes, plan
            return plan
        measured, plan = self._measured
        choices = StoredChoices(None, plan.choices(), made_for=_text(names, measured))
        policy = replace(self._policy, effort=None, precision="fp32", budget_s=None)
        graph = optimised_for(graph, self.device, self._policy.precision)
        return Plan(graph, self.device, policy, choices=choices)


def _sizes(info: ValueInfo, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return an input's sizes in the network's axis order, without the batch.

    shape: shape of the caller's array.
    """
    if info.given is not None and len(shape) == 4:
        order = AXES[info.given.layout]
        shape = tuple(shape[order.index(axis)] for axis in range(4))
    return shape[1:] if info.shape[:1] == (None,) else shape


def _text(names: list[str], sizes: Sizes) -> str:
    return ", ".join(f"{name} of {shape_text(size)}"
                     for name, size in zip(names, sizes, strict=True))
