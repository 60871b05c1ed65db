"""Chooses the combination of candidates that makes a network fastest.

The candidates are those that were measured for the network's layers and fusions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gossamer.errors import GossamerError, UnsupportedError
from gossamer.facts import REAL, in_float16
from gossamer.ops.host_threads import ONE, THREADS
from gossamer.ops.packed import formats_for
from gossamer.plan.candidate import Candidate, compared, fastest, why_not_others
from gossamer.plan.choose.plan_assignment import (
    Conversion,
    NoAssignmentError,
    Option,
    minimise,
)
from gossamer.plan.choose.program_builder import LayerChoice, ProgramBuilder, has_same_packing
from gossamer.plan.choose.table import Table
from gossamer.plan.fusion import WHOLE
from gossamer.plan.program import Layer, Program
from gossamer.plan.tune.rows import LayerCandidates, usable
from gossamer.tensor import Format, default_format, memory_format

LAYER_BY_LAYER = "layer by layer"
"""Key of the reason why a fusion is not computed layer by layer; other keys are names of
algorithms."""
Restriction = Callable[[LayerCandidates, Candidate], bool]
"""A function that returns whether a candidate of a layer or fusion is admitted. Other candidates
are used only if necessary, for as few layers as possible."""


@dataclass(frozen=True)
class Assigned:
    """A plan assignment.

    taken: the layers and fusions, each with its candidate.
    reshapes: the formats in which reshapes read their inputs, by the names of the layers.
    cost_us: cost of all candidates and conversions; the cost of some conversions may be an
    estimate.
    conversions: the conversions of values between the candidates, in the order of the network.
    choices: the keys of the options that are taken, as in `Option.choice`.
    """

    taken: list[tuple[LayerCandidates, Candidate]]
    reshapes: dict[str, Format]
    cost_us: float
    conversions: tuple[Conversion, ...]
    choices: frozenset[Hashable] = frozenset()


class Assigner:
    """Finds a table's cheapest plan assignments and their programs.

    plan_assignment.py solves the integer program.
    """

    def __init__(self, table: Table) -> None:
        self._table, self._network, self._only = table, table.network, table.policy.only
        self._asked_for: Restriction = free if self._only is None else (
            lambda node, candidate: candidate.algorithm.name == self._only)
        """The restriction to the policy's `only` wherever it can be used."""

    def measure(self) -> None:
        """List the table's candidates, and measure them within the tuner's effort.

        Further rounds of the search improve the assignment that is the cheapest so far.
        """
        self._table.tuner.measure_all(self._table.list_nodes(), self._promising)
        self._table.refresh()

    @property
    def measured(self) -> list[LayerCandidates]:
        """All layers and fusions with their candidates."""
        return [node for node in self._table.nodes if not node.layer.is_reshape]

    def _promising(self) -> list[tuple[LayerCandidates, Candidate]]:
        """Return the cheapest assignment's candidates with their layers.

        If a candidate has no measured time yet, its estimated time is used.
        """
        self._table.refresh()
        try:
            return self.assigned(self._asked_for).taken
        except GossamerError:
            return []  # a layer has no candidate that may work

    def program(self, assigned: Assigned) -> Program:
        """Return the program of an assignment."""
        reasons = fusion_reasons(self.measured, {node.layer.name: candidate
                                                 for node, candidate in assigned.taken},
                                 forced=self._only)
        chosen = {node.layer.name: _choice(node, candidate, reasons.get(node.layer.name, {}))
                  for node, candidate in assigned.taken}

        def decide(builder: ProgramBuilder, layer: Layer) -> LayerChoice:
            return chosen.get(layer.name) or self._conversion(layer)

        program = self._network.program(
            self._table.device, decide,
            [node.layer for node, _ in assigned.taken if node.layer.covers], assigned.reshapes)
        program.measured, program.cost_us = self.measured, assigned.cost_us
        return program

    def _conversion(self, layer: Layer) -> LayerChoice:
        """Return the choice of the fastest candidate for a conversion."""
        node = self._table.conversion(layer)
        self._table.tuner.measure_all([node])
        return _choice(node, min(usable(layer, node.candidates, node.device),
                                key=lambda candidate: candidate.cost), {})

    def checked(self, restriction: Restriction | None = None,
                excluded: Sequence[Assigned] = ()) -> Assigned:
        """Return the cheapest assignment with measured conversions and checked candidates.

        Each candidate was checked to be correct with the constants of its layer. A layer that no
        algorithm of the device supports runs on the host.

        restriction: decides which candidates are admitted. If the policy's `only` names an
        algorithm, the default admits the candidates of this algorithm. If not, it admits all.
        excluded: assignments that are not returned.

        Raises UnsupportedError if the host cannot compute a layer either.
        """
        while True:
            assigned = self.assigned(restriction or self._asked_for, excluded=excluded)
            # an estimate is a lower bound: once the cheapest assignment has no estimated
            # conversions, no measurement can make another assignment cheaper
            if not (self._table.measure_estimated(assigned.conversions)
                    or self._exclude_wrong(assigned)):
                return assigned

    def _exclude_wrong(self, assigned: Assigned) -> bool:
        """Exclude candidates that compute wrong numbers with their layers' constants.

        Returns whether any candidate was excluded.
        """
        checked = self._table.tuner.verified([(node.layer, candidate, node.device)
                                              for node, candidate in assigned.taken])
        wrong = [(node, candidate, verified) for (node, candidate), verified
                 in zip(assigned.taken, checked, strict=True) if verified is not candidate]
        for node, candidate, verified in wrong:
            node.candidates[node.candidates.index(candidate)] = verified
        return bool(wrong)

    def assigned(self, restriction: Restriction, excluded: Sequence[Assigned] = ()) -> Assigned:
        """Return the cheapest assignment of layers and fusions.

        If a candidate may still be measured, its cost is its estimated time. If a conversion was
        not measured, its cost is a lower bound of the conversion's time. Raises UnsupportedError if
        every assignment has infinite cost.

        restriction, excluded: as in checked().
        """
        options = self._options(restriction)
        network = self._network
        fixed = {name: memory_format(network.specs[name])
                 for name in (*network.inputs, *network.constants)}
        required = {name: memory_format(spec) for name, spec in network.outputs.items()}
        try:
            assignment = minimise([option for option, _, _ in options], fixed,
                                  self._table.conversion_us, required=required,
                                  excluded=[each.choices for each in excluded])
        except NoAssignmentError as error:
            forced = "" if self._only is None else f"; omit only={self._only!r}"
            raise UnsupportedError(f"{self._table.device.name}: {error}{forced}") from None
        taken = [options[index] for index in assignment.options]
        return Assigned([(node, candidate) for _, node, candidate in taken if candidate],
                        {node.layer.name: option.reads[0][2]
                         for option, node, candidate in taken if candidate is None},
                        assignment.cost, assignment.conversions,
                        frozenset(option.choice for option, _, _ in taken))

    def _options(self, restriction: Restriction
                 ) -> list[tuple[Option, LayerCandidates, Candidate | None]]:
        """Return the options of all nodes and fusions.

        Each item has the option, its layer or fusion, and its candidate. The candidate of a reshape
        is None.
        Raises GossamerError with the reasons if all candidates of a layer are excluded, and no
        fusion that covers the layer has an option.
        """
        options: list[tuple[Option, LayerCandidates, Candidate | None]] = []
        for node in self._table.nodes:
            if node.layer.is_reshape:
                options += [(self._option(node.layer, 0.0, (needs,), (gives,)), node, None)
                            for needs, gives in self._reshapes(node.layer)]
            unwanted = sum(not self._table.layers[name].is_reshape for name in node.layer.computes)
            options += [
                (self._option(node.layer, self._table.cost_in_plan(node, candidate),
                              *candidate.formats, 0 if restriction(node, candidate) else unwanted,
                              candidate.algorithm.name),
                 node, candidate) for candidate in allowed(restriction, node)]
        computed = {name for option, _, _ in options for name in option.nodes}
        for node in self._table.of_layers:
            if node.layer.name not in computed:
                usable(node.layer, node.candidates, node.device)
        return options

    def _option(self, layer: Layer, cost: float, inputs: Sequence[Format],
                outputs: Sequence[Format], unwanted: int = 0, kind: str = "") -> Option:
        """Return the option that computes a layer or fusion in these formats."""
        reads = [((layer.name, port), value, format_) for port, (value, format_)
                 in enumerate(zip(layer.inputs, inputs, strict=True))]
        if layer.covers:
            formats = dict(zip(layer.inputs, inputs, strict=True))
            reads = [((name, port), value, formats[value]) for name in layer.covers
                     for port, value in enumerate(self._table.layers[name].inputs)
                     if value in formats]
        return Option(cost, layer.computes, tuple(reads),
                      tuple(zip(layer.outputs, outputs, strict=True)), bool(layer.covers),
                      unwanted, kind)

    def _reshapes(self, layer: Layer) -> list[tuple[Format, Format]]:
        """Return a reshape's possible input and output formats.

        A reshape copies nothing. Its input must be row-major. If both shapes have the same packed
        layout, the input may also be packed.
        """
        spec, facts = self._network.specs[layer.inputs[0]], layer.facts.get(layer.outputs[0], REAL)
        target = self._network.specs[layer.outputs[0]].shape
        may_be_half = spec.dtype == "float32" and (
            self._table.tuner.precision == "fp16" or in_float16(facts))
        formats = [(default_format(spec.shape, dtype), default_format(target, dtype))
                   for dtype in (spec.dtype, *(("float16",) if may_be_half else ()))]
        if has_same_packing(spec.shape, target):
            formats += [(packed, packed) for packed in formats_for(facts)]
        return formats


def _choice(node: LayerCandidates, taken: Candidate, reasons: Mapping[str, str]
            ) -> LayerChoice:
    """Return the choice of a candidate, with the reasons why other algorithms were rejected."""
    rejected = {**node.reasons, **reasons, **why_not_others(node.candidates, taken)}
    return LayerChoice(taken.algorithm, taken.variant, node.device, rejected, node.candidates)


def allowed(restriction: Restriction, node: LayerCandidates) -> list[Candidate]:
    """Return the usable candidates that are admitted, or all usable ones if none is admitted."""
    usable = [candidate for candidate in node.candidates
              if math.isfinite(candidate.estimated_cost)]
    return [candidate for candidate in usable if restriction(node, candidate)] or usable


def free(node: LayerCandidates, candidate: Candidate) -> bool:
    """Admit all candidates."""
    return True


def dense(node: LayerCandidates, candidate: Candidate) -> bool:
    """Admit only algorithms that do not skip zeros."""
    return candidate.algorithm.dense


def one_thread(node: LayerCandidates, candidate: Candidate) -> bool:
    """On the host, admit only candidates that use one thread or have no setting of threads."""
    return node.device.compiles or dict(candidate.variant.config).get(THREADS, ONE) == ONE


def whole(node: LayerCandidates, candidate: Candidate) -> bool:
    """Admit only candidates that compute the whole network as one part."""
    return node.layer.name == WHOLE


def fusion_reasons(measured: Iterable[LayerCandidates], taken: Mapping[str, Candidate], *,
                   forced: str | None = None) -> dict[str, dict[str, str]]:
    """Return each step's reasons for fused or unfused computation.

    The key of a step is the name of its layer or fusion; the key of a reason is the name of an
    algorithm, or LAYER_BY_LAYER. A fusion that was taken has the reason why its layers are not
    computed one by one. For a fusion that was not taken, the step that computes the fusion's first
    layer has, for each algorithm, the reason why the algorithm does not compute the fusion.

    measured: all layers and fusions.
    taken: the candidate of each step, by the name of the step's layer or fusion.
    forced: name of the algorithm that the user forces.
    """
    known = {node.layer.name: node for node in measured}
    step_of = {layer: step for step in taken for layer in known[step].layer.computes}
    reasons: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name, fusion in known.items():
        covers = [layer for layer in fusion.layer.covers if layer in known]
        if name in taken and covers:
            reasons[name][LAYER_BY_LAYER] = (
                f"{forced} is forced" if taken[name].algorithm.name == forced else
                "some layer has no working candidate" if math.isinf(
                    unfused_us := sum(known[layer].least_cost for layer in covers)) else
                compared(unfused_us, taken[name].cost))
        elif covers:
            row, steps = reasons[step_of[covers[0]]], {step_of[layer]: None for layer in covers}
            fused = next((step for step in steps if known[step].layer.covers), None)
            alone_us = sum(taken[step].cost for step in steps)
            for algorithm, reason in fusion.reasons.items():
                row.setdefault(algorithm, reason)
            for algorithm, candidate in fastest(fusion.candidates).items():
                row[algorithm] = candidate.measured.failure or (
                    f"{forced} is forced" if forced in {taken[step].algorithm.name
                                                        for step in steps}
                    else f"{name}: {compared(candidate.cost, alone_us)}" if fused is None
                    else f"{name}: its layers are computed in {fused}")
            row.pop(taken[step_of[covers[0]]].algorithm.name, None)
    return reasons
