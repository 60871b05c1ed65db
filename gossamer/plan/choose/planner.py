"""Makes the program of a plan for a batch size. The program is either restored from stored choices,
or it is chosen, held to a tolerance, and compared with baseline plans from end to end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from gossamer.device.base import Device
from gossamer.errors import GossamerError, InputError, closest
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.ops.weights import WeightsStore
from gossamer.plan.choose.first import FirstChoices
from gossamer.plan.choose.network import Network
from gossamer.plan.choose.outcomes import Planned
from gossamer.plan.choose.saved_options import StoredChoices
from gossamer.plan.eligibility import ANY
from gossamer.plan.lower.inputs import given_inputs
from gossamer.plan.lower.rules import lower
from gossamer.plan.policy import Policy
from gossamer.plan.program import Layer, Program
from gossamer.plan.run.context import Context
from gossamer.plan.tune.profile import CHOOSING
from gossamer.tensor import TensorSpec, default_spec

if TYPE_CHECKING:
    from gossamer.plan.choose.calibration import Calibration
    from gossamer.plan.tune.tuner import Tuner


class Planner:
    """Makes the programs of one network on one device, from the arguments of Plan."""

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
        """Return the network at a batch size, before anything is chosen for its layers."""
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
        """Return the program of a batch size. Measurements are written to disk, even where an
        error or Ctrl-C ends the measuring. Raises InputError where the calibration inputs do not
        suit the batch size."""
        if self._tuner is None:
            return self._plan(batch)
        with self._tuner.profile.whole():
            self._tuner.start()
            try:
                return self._plan(batch)
            finally:
                self._tuner.flush()

    def _plan(self, batch: int) -> Planned:
        if self._calibration is not None:
            self._calibration.check(batch)
        network = self.network(batch)
        if self._choices is not None:
            program, notes = self._choices.program(network, self._device)
            return Planned(program, notes=tuple(notes), is_stored=True)

        _check_forced(network.layers, self._policy)
        stage = nullcontext() if self._tuner is None else self._tuner.profile.stage(CHOOSING)
        with stage:
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
        """Return the cheapest plan, within the tolerance if there is one."""
        if self._calibration is None:
            return self._made(network, None)
        return self._calibration.choose(partial(self._made, network), self._error)

    def _made(self, network: Network, less_precise: frozenset[str] | None) -> Planned:
        """Return the cheapest plan. less_precise: as in Assigner."""
        if self._tuner is None:
            return Planned(FirstChoices(network, self._device, self._policy).program())
        from gossamer.plan.choose.assigner import Assigner

        try:
            assigner = Assigner(network, self._device, self._tuner, self._policy, less_precise)
            return Planned(assigner.program(assigner.checked()), assigner)
        finally:
            # the programs that are timed next may need all memory of the device
            self._tuner.release()

    def _refined(self, planned: Planned, tuner: Tuner) -> Planned:
        """Return the plan that is the fastest from end to end: the plan of the cheapest
        assignment, or another plan."""
        from gossamer.plan.choose.refine import refined

        try:
            found = refined(self._graph.name, planned, self._device, tuner, self._accurate,
                            self._note)
        finally:
            tuner.release()
        if planned.accuracy is None or found.program is planned.program:
            return found
        assert self._calibration is not None
        return replace(found, accuracy=self._calibration.accuracy(
            found.program, self._error(found.program), planned.accuracy.held_back))

    def _error(self, program: Program) -> float:
        """Return the error of a program's outputs on the calibration inputs."""
        assert self._calibration is not None
        return self._calibration.error(
            Context(self._graph.name, program, self._device).run, program.batch)

    def _accurate(self, program: Program) -> Program:
        """Return the program. Raises GossamerError where its error exceeds the tolerance."""
        tolerance = None if self._calibration is None else self._calibration.tolerance
        if tolerance is not None and not (error := self._error(program)) <= tolerance:
            raise GossamerError(f"its error {error:.1e} is more than the tolerance "
                                f"{tolerance:.1e}")
        return program


def _check_forced(layers: Sequence[Layer], policy: Policy) -> None:
    """Raise InputError where the policy's `force` names a layer that does not exist."""
    names = [layer.name for layer in layers if not layer.is_reshape]
    for name in policy.force:
        if name not in names:
            close = closest(name, names)
            raise InputError(f"force {name}: the network has no such layer" + (
                f"; close to it: {', '.join(map(repr, close))}" if close else ""))


def _at_boundary(spec: TensorSpec, policy: Policy) -> TensorSpec:
    """Return the spec that a policy wants for an input or output of the network. spec: the spec in
    the default layout."""
    if policy.boundary is None or len(spec.shape) != 4 or spec.dtype != "float32":
        return spec
    return TensorSpec(spec.shape, policy.boundary)
