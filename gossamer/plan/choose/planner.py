"""Makes the program of a plan for a batch size.

The program is either restored from stored choices, or chosen, checked against a tolerance, and
compared with baseline plans from end to end. If nothing is measured, each layer takes the first
algorithm that supports it (see FirstChoices).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from gossamer.device.base import Device
from gossamer.errors import GossamerError, InputError, closest
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.ops.algorithm import Algorithm, Variant
from gossamer.ops.fused.problem import PartProblem
from gossamer.ops.registry import OPS
from gossamer.ops.weights import WeightsStore
from gossamer.plan.choose.network import LayerChoice, Network, ProgramBuilder
from gossamer.plan.choose.outcomes import Planned
from gossamer.plan.choose.saved_options import StoredChoices
from gossamer.plan.fusion import (
    find_fusions,
    find_parts,
    is_part,
    may_have_parts,
    recognising,
)
from gossamer.plan.lower.rules import lower
from gossamer.plan.lower.state import given_inputs
from gossamer.plan.policy import (
    ANY,
    Policy,
    able_on,
    eligibility,
    forced_otherwise,
)
from gossamer.plan.program import Layer, Program
from gossamer.plan.run.context import Context
from gossamer.plan.tune.space import Space
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

        Measurements are written to disk, even if an error or Ctrl-C ends the search. Raises
        InputError if the calibration inputs do not fit the batch size.
        """
        if self._tuner is None:
            return self._plan(batch)
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


class FirstChoices:
    """Choices for a network without measurements.

    Each layer takes the first algorithm that supports the problem, in the algorithm's first config.
    If a layer has packed inputs, algorithms that read these inputs without conversion are
    preferred. The formats are those for which the fewest bytes of inputs must be converted; among
    these, packed outputs are preferred. On devices that compile kernels, algorithms on packed bits
    come first: in a network whose values are all packed, they take a small fraction of the time of
    other algorithms. A layer that no algorithm of the device supports runs on the host.

    fusions: the fusions that the policy's `only` forces; if it forces none, the parts (see
    fusion.py) that a library for whole networks computes. All other layers are computed unfused.
    """

    def __init__(self, network: Network, device: Device, policy: Policy) -> None:
        self._network = network
        self._device = device
        self._policy = policy
        self._space = Space.unmeasured(policy.threads)
        layers, may_be_forced = network.layers, not policy.unfused and policy.only is not None
        fusions = find_fusions(layers, network.outputs) if may_be_forced else []
        self._forced = self._forced_algorithms(fusions)
        self.fusions = [fusion for fusion in fusions if fusion.name in self._forced]
        if not self.fusions:
            self.fusions = self._parts(layers)

    def program(self) -> Program:
        """Return the program.

        Raises UnsupportedError if the host cannot compute a layer either.
        """
        return self._network.program(self._device, self.choice, self.fusions)

    def _parts(self, layers: Sequence[Layer]) -> list[Layer]:
        """Return the parts that a library for whole networks computes.

        Layers whose algorithm the policy decides are left out. Layers whose weights are all zero
        are left out too, because gossamer computes only their epilogues. If `only` names an
        algorithm for parts, no layers are left out except those listed in the policy's `force`.
        """
        if not may_have_parts(self._policy):
            return []
        if self._policy.only in {algorithm.name for algorithm in OPS[PartProblem.op].algorithms}:
            return find_parts(layers, self._network.outputs, self._device, self._policy.force)
        left_out = [layer.name for layer in layers if layer.density == 0]
        if self._policy.only is not None:
            left_out += [layer.name for layer in layers if not layer.is_reshape
                         and self._policy.only in {each.name for each in self._able(layer)[0]}]
        return find_parts(layers, self._network.outputs, self._device,
                          [*left_out, *self._policy.force])

    def choice(self, builder: ProgramBuilder, layer: Layer) -> LayerChoice:
        """Return the choice for a layer or fusion.

        The builder already has the layer's inputs.
        """
        able, layer_device, reasons = self._able(layer)
        packed = {name for name in layer.inputs if builder.specs[name].format.is_packed}

        def order(option: tuple[int, Variant]) -> tuple[bool, int, int, bool]:
            place, variant = option
            inputs = list(zip(layer.inputs, variant.inputs, strict=True))
            unpacks = not all(builder.specs[name].same_memory(spec) for name, spec in inputs
                              if name in packed)
            converted = sum(spec.nbytes for name, spec in inputs if not builder.has(name, spec))
            return unpacks, place, converted, not any(
                spec.format.is_packed and name not in self._network.outputs
                for name, spec in zip(layer.outputs, variant.outputs, strict=True))

        place, variant = min(((place, variant) for place, algorithm in enumerate(able)
                              for variant in self._space.within_effort(
                                  algorithm, layer.problem, layer_device)), key=order)
        reasons |= {other.name: f"comes after {able[place].name}" for other in able
                    if layer_device is self._device and other is not able[place]}
        return LayerChoice(able[place], variant, layer_device, reasons)

    def _able(self, layer: Layer) -> tuple[list[Algorithm], Device, dict[str, str]]:
        """Return the algorithms that may compute a layer, in order, and their device.

        The third result gives, by algorithm name, the reason why an algorithm may not compute the
        layer.
        """
        if layer.name in self._forced:
            algorithm, reasons = self._forced[layer.name]
            return [algorithm], self._device, dict(reasons)
        if is_part(layer):
            return list(recognising(layer)), self._device, {}
        able, layer_device, reasons = eligibility(
            layer, self._device, self._space.refusal_reason, self._policy)
        if layer_device.compiles:
            able.sort(key=lambda algorithm: not algorithm.exact)
        return able, layer_device, dict(reasons)

    def _forced_algorithms(self, fusions: Sequence[Layer]
                           ) -> dict[str, tuple[Algorithm, Mapping[str, str]]]:
        """Return the algorithms that `only` forces, by fusion name.

        Each algorithm comes with the reasons why other algorithms cannot compute the fusion. The
        fusions that the algorithm can compute are taken in the order of the network. A fusion that
        shares a layer with an earlier one is left out.
        """
        forced: dict[str, tuple[Algorithm, Mapping[str, str]]] = {}
        covered: set[str] = set()
        for fusion in fusions:
            able, reasons = able_on(fusion.problem, self._device, self._space.refusal_reason,
                                    recognising(fusion))
            for algorithm in able:
                if (algorithm.name == self._policy.only and covered.isdisjoint(fusion.covers)
                        and not forced_otherwise(fusion, algorithm, self._policy)):
                    forced[fusion.name] = algorithm, reasons
                    covered.update(fusion.covers)
        return forced
