"""Makes the program of a plan for a batch size.

The program is either restored from stored choices, or chosen, checked against a tolerance, and
compared with baseline plans from end to end. If nothing is measured, each layer takes the first
algorithm that supports it (see FirstChoices).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from gossamer.device.base import Device
from gossamer.errors import GossamerError, InputError, closest
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.ops.weights import WeightsStore
from gossamer.plan.choose.first_choices import FirstChoices
from gossamer.plan.choose.outcomes import Planned
from gossamer.plan.choose.program_builder import Network
from gossamer.plan.choose.saved_options import StoredChoices
from gossamer.plan.lower.rules import lower
from gossamer.plan.lower.state import given_inputs
from gossamer.plan.policy import ANY, Policy
from gossamer.plan.program import Layer, Program
from gossamer.plan.run.context import Context
from gossamer.tensor import TensorSpec, default_spec

if TYPE_CHECKING:
    from gossamer.plan.choose.calibration import Calibration
    from gossamer.plan.tune.tuner import Tuner


class Planner:
    """Makes the programs of one network on one device.

    The arguments are those of Plan.
    """

    def __init__(self, graph: Graph, device: Device, tuner: Tuner | None = None,
                 choices: StoredChoices | None = None, policy: Policy = ANY,
                 calibration: Calibration | None = None,
                 note: Callable[[str], None] = lambda line: None) -> None:
        self._graph = graph
        self._device = device
        self._tuner = tuner
        self._choices = choices
        self._policy = policy
        self._calibration = calibration
        self._note = note
        self._store = WeightsStore()

    def network(self, batch: int) -> Network:
        """Return the network at a batch size, without choices."""
        static = resolve(self._graph, batch)
        given = given_inputs(static, self._store)
        layers, constants = lower(static, self._store)
        outputs = {info.name: default_spec(
            static.shapes[info.name], info.returned_dtype or static.dtypes[info.name])
            for info in self._graph.outputs}
        inputs, outputs = ({name: _at_boundary(spec, self._policy) for name, spec in specs.items()}
                           for specs in (given.specs, outputs))
        return Network([*given.layers, *layers], batch, inputs, outputs, constants, given.names)

    def planned(self, batch: int) -> Planned:
        """Return the program of a batch size.

        Raises InputError if the calibration inputs do not fit the batch size.
        """
        if self._tuner is not None:
            self._tuner.start()
        if self._calibration is not None:
            self._calibration.check(batch)
        network = self.network(batch)
        if self._choices is not None:
            program, notes = self._choices.program(network, self._device)
            return Planned(program, notes=tuple(notes))

        _check_forced(network.layers, self._policy)
        planned = self._chosen(network)
        if self._policy.sparse_threshold is not None:
            return replace(planned, notes=(
                "sparse and dense algorithms were not compared: the threshold "
                f"{self._policy.sparse_threshold:g} decided",))
        if self._tuner is None or self._policy.only is not None:
            return planned
        if self._tuner.is_over:
            return replace(planned, notes=(
                *planned.notes, "tuning ended before all useful candidates were measured",))
        return self._refined(planned, self._tuner)

    def _chosen(self, network: Network) -> Planned:
        """Return the cheapest plan; if there is a tolerance, the cheapest within it."""
        if self._calibration is None:
            return self._made(network, None)
        return self._calibration.choose(partial(self._made, network), self._error)

    def _made(self, network: Network, less_precise: frozenset[str] | None) -> Planned:
        """Return the cheapest plan. less_precise: as in Table."""
        if self._tuner is None:
            return Planned(FirstChoices(network, self._device, self._policy).program())
        from gossamer.plan.choose.assigner import Assigner
        from gossamer.plan.choose.table import Table

        try:
            assigner = Assigner(Table(network, self._device, self._tuner, self._policy,
                                      less_precise))
            assigner.measure()
            assigned = assigner.checked()
            return Planned(assigner.program(assigned), assigner, assigned)
        finally:
            # the programs that are timed next may need all memory of the device
            self._tuner.release()

    def _refined(self, planned: Planned, tuner: Tuner) -> Planned:
        """Return the plan with the shortest end-to-end time.

        This is the plan of the cheapest assignment (`planned`), or a plan that is timed against it.
        """
        from gossamer.plan.choose.refine import refined

        try:
            found = refined(self._graph, planned, self._device, tuner, self._accurate,
                            self._note)
        finally:
            tuner.release()
        if planned.accuracy is None or found.program is planned.program:
            return found
        assert self._calibration is not None
        return replace(found, accuracy=self._calibration.accuracy(
            found.program, self._error(found.program), planned.accuracy.held_back))

    def _error(self, program: Program) -> float:
        """Return a program's error on the calibration inputs."""
        assert self._calibration is not None
        return self._calibration.error(
            Context(self._graph, program, self._device).run, program.batch)

    def _accurate(self, program: Program) -> Program:
        """Return the program. Raises GossamerError if its error exceeds the tolerance."""
        tolerance = None if self._calibration is None else self._calibration.tolerance
        if tolerance is not None and not (error := self._error(program)) <= tolerance:
            raise GossamerError(f"its error {error:.1e} exceeds the tolerance {tolerance:.1e}")
        return program


def _check_forced(layers: Sequence[Layer], policy: Policy) -> None:
    """Raise InputError if `force` names an unknown layer."""
    names = [layer.name for layer in layers if not layer.is_reshape]
    for name in policy.force:
        if name not in names:
            close = closest(name, names)
            raise InputError(f"force {name}: the network has no such layer" + (
                f"; close to it: {', '.join(map(repr, close))}" if close else ""))


def _at_boundary(spec: TensorSpec, policy: Policy) -> TensorSpec:
    """Return the spec of a network's input or output under a policy.

    spec: the spec in the default layout.
    """
    if policy.boundary is None or len(spec.shape) != 4 or spec.dtype != "float32":
        return spec
    return TensorSpec(spec.shape, policy.boundary)
