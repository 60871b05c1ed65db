"""How a plan's program of a batch size comes to be: chosen, held to a tolerance and compared with
other programs as a whole; or restored from stored choices."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace

from gossamer.device.base import Device
from gossamer.errors import GossamerError
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.ops.weights import WeightsInfo
from gossamer.plan.choose.baseline_plans import Comparison, compare, own_weights
from gossamer.plan.choose.calibration import Accuracy, Calibration
from gossamer.plan.choose.select import choose
from gossamer.plan.lower.rules import lower
from gossamer.plan.program import Layer, Program
from gossamer.plan.report.report import DENSE
from gossamer.plan.run.context import Context
from gossamer.plan.store.saved_options import StoredChoices
from gossamer.plan.tune.tuner import Tuner
from gossamer.tensor import TensorSpec, default_spec


@dataclass(frozen=True)
class Planned:
    """A program, and how it was found: beside which others, with which error. notes: what the
    user should know of the choice."""

    program: Program
    comparison: Comparison | None = None
    accuracy: Accuracy | None = None
    notes: tuple[str, ...] = ()


class Planner:
    """Makes the programs of one network on one device. The arguments are those of Plan."""

    def __init__(self, graph: Graph, device: Device, tuner: Tuner | None = None,
                 choices: StoredChoices | None = None, only: str | None = None,
                 sparse_threshold: float | None = None, calibration: Calibration | None = None,
                 note: Callable[[str], None] = lambda line: None) -> None:
        self._graph = graph
        self._device = device
        self._tuner = tuner
        self._choices = choices
        self._only = only
        self._sparse_threshold = sparse_threshold
        self._calibration = calibration
        self._note = note
        self._weights_infos: dict[str, WeightsInfo] = {}

    def layers(self, batch: int) -> list[Layer]:
        """What is to be computed at a batch size, before anything is chosen."""
        return lower(resolve(self._graph, batch), self._weights_infos)[0]

    def planned(self, batch: int) -> Planned:
        """The program of a batch size. Raises InputError where its outputs cannot be compared with
        the calibration's."""
        if self._calibration is not None:
            self._calibration.check(batch)
        static = resolve(self._graph, batch)
        layers, constants = lower(static, self._weights_infos)

        def specs(values: list[str]) -> dict[str, TensorSpec]:
            return {name: default_spec(static.shapes[name], static.dtypes[name])
                    for name in values}

        inputs = specs([info.name for info in self._graph.inputs])
        outputs = [info.name for info in self._graph.outputs]
        if self._choices is not None:
            program, notes = self._choices.program(layers, batch, inputs, specs(outputs), constants,
                                                   self._device)
            return Planned(program, notes=tuple(notes))

        def make(only: str | None, tuner: Tuner | None,
                 less_precise: frozenset[str] | None = None) -> Program:
            # no layer has so many zeros
            threshold = 1.0 if only == DENSE else self._sparse_threshold
            try:
                return choose(layers, batch, inputs, outputs, constants, self._device, tuner,
                              only=None if only == DENSE else only, sparse_threshold=threshold,
                              less_precise=less_precise)
            finally:
                # what runs next is whole programs, which have the device to themselves
                if self._tuner is not None:
                    self._tuner.release()

        if self._calibration is None:
            planned = Planned(make(self._only, self._tuner))
        else:
            program, accuracy = self._calibration.choose(
                lambda names: make(self._only, self._tuner, names), self._error)
            planned = Planned(program, accuracy=accuracy)
        if self._sparse_threshold is not None:
            return replace(planned, notes=(
                "sparse and dense algorithms were not compared: the threshold "
                f"{self._sparse_threshold:g} decided",))
        if self._tuner is None or self._only is not None:
            return planned
        return self._compared(planned, make, self._tuner)

    def _compared(self, planned: Planned, make: Callable[..., Program], tuner: Tuner) -> Planned:
        """The plan that is the fastest as a whole."""
        comparison = compare(self._graph.name, planned.program,
                             lambda only, known: self._accurate(make(only, known)),
                             self._device, tuner, self._note)
        if comparison is None:
            return planned
        accuracy = planned.accuracy
        if accuracy is not None and comparison.program is not planned.program:
            assert self._calibration is not None
            accuracy = self._calibration.accuracy(
                comparison.program, self._error(comparison.program), accuracy.held_back)
        return Planned(comparison.program, comparison, accuracy)

    def _error(self, program: Program) -> float:
        """Of a program's outputs on the calibration inputs."""
        assert self._calibration is not None
        try:
            return self._calibration.error(
                Context(self._graph.name, program, self._device, own_weights()).run,
                program.batch)
        finally:
            # contexts hold themselves in cycles, and their memory with them
            gc.collect()

    def _accurate(self, program: Program) -> Program:
        """The program, if it keeps the tolerance. Raises GossamerError where it does not."""
        allowed = None if self._calibration is None else self._calibration.tolerance
        if allowed is not None and not (off := self._error(program)) <= allowed:
            raise GossamerError(f"its error {off:.1e} is more than the tolerance {allowed:.1e}")
        return program
