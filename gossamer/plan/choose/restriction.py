"""Restrictions of a plan assignment: which candidates it may take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gossamer.plan.candidate import Candidate
from gossamer.plan.policy import Effort
from gossamer.plan.program import MeasuredLayer, Program

Admits = Callable[[MeasuredLayer, Candidate], bool]
"""A function that returns whether a restriction admits a candidate of a layer or fusion."""


@dataclass(frozen=True)
class Restriction:
    """The candidates that an assignment may take. As few layers as possible are computed by other
    candidates than those that are admitted.

    admits: returns whether a candidate is admitted.
    only: the name of the algorithm that is taken wherever it can be used.
    fixed: the candidate of each layer and fusion of a program, by the layer's name, where no other
    candidate may be taken; else None.
    is_checked: whether the candidates that are assigned are checked with the constants of their
    layers.
    """

    admits: Admits = lambda node, candidate: True
    only: str | None = None
    fixed: Mapping[str, Candidate] | None = None
    is_checked: bool = True

    def allowed(self, node: MeasuredLayer) -> list[Candidate]:
        """Returns the candidates that a layer or fusion may take: those that are admitted, or all
        where none is."""
        usable = [candidate for candidate in node.candidates if candidate.is_usable]
        if self.fixed is None:
            return [each for each in usable if self.admits(node, each)] or usable
        wanted = self.fixed.get(node.layer.name)
        return [] if wanted is None else [each for each in usable if each.is_same_as(wanted)]


FREE = Restriction()
"""The restriction that admits all candidates."""


def wherever(algorithm: str) -> Restriction:
    """Returns the restriction that takes one algorithm wherever it can be used."""
    return Restriction(lambda node, candidate: candidate.algorithm.name == algorithm, algorithm)


DENSE = Restriction(lambda node, candidate: candidate.algorithm.dense)
"""The restriction without algorithms that skip zeros."""
FLOATS = Restriction(lambda node, candidate: not candidate.algorithm.exact)
"""The restriction without algorithms on bits."""


def first_configs(measured: Sequence[MeasuredLayer], effort: Effort) -> Restriction:
    """Returns the restriction to the first configs of each algorithm, among the configs that work.
    effort: says how many first configs an algorithm has."""
    admitted: set[tuple[str, str, str]] = set()
    for node in measured:
        first: dict[str, set[str]] = {}
        for candidate in (each for each in node.candidates if each.is_usable):
            configs = first.setdefault(candidate.algorithm.name, set())
            most = effort.configs_of(candidate.algorithm)
            if most is None or len(configs) < most:
                configs.add(candidate.variant.config_text)
        admitted.update((node.layer.name, name, config)
                        for name, configs in first.items() for config in configs)
    return Restriction(lambda node, candidate: (
        node.layer.name, candidate.algorithm.name, candidate.variant.config_text) in admitted)


def exchanged(program: Program, candidates: Mapping[str, Candidate], *,
              is_checked: bool) -> Restriction:
    """Returns the restriction to the candidates of a program, some of them exchanged for others.
    candidates: the candidates that replace others, by the names of their layers."""
    measured = {known.layer.name: known.candidates for known in program.measured}
    fixed = {step.layer.name: step.candidate_of(measured[step.layer.name])
             for step in program.steps if step.layer.name in measured}
    return Restriction(fixed={**fixed, **candidates}, is_checked=is_checked)
