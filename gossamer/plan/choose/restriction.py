"""Restrictions of a plan assignment: which candidates it may take."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gossamer.plan.candidate import Candidate
from gossamer.plan.policy import Effort
from gossamer.plan.program import MeasuredLayer

Restriction = Callable[[MeasuredLayer, Candidate], bool]
"""A function that returns whether a candidate of a layer or fusion is admitted. As few layers as
possible are computed by other candidates than those that are admitted."""


def allowed(restriction: Restriction, node: MeasuredLayer) -> list[Candidate]:
    """Returns the candidates that a layer or fusion may take: those that are admitted, or all where
    none is."""
    usable = [candidate for candidate in node.candidates if candidate.is_usable]
    return [candidate for candidate in usable if restriction(node, candidate)] or usable


def free(node: MeasuredLayer, candidate: Candidate) -> bool:
    """Admits all candidates."""
    return True


def dense(node: MeasuredLayer, candidate: Candidate) -> bool:
    """Admits no algorithm that skips zeros."""
    return candidate.algorithm.dense


def floats(node: MeasuredLayer, candidate: Candidate) -> bool:
    """Admits no algorithm on bits."""
    return not candidate.algorithm.exact


def wherever(algorithm: str) -> Restriction:
    """Returns the restriction that takes one algorithm wherever it can be used."""
    return lambda node, candidate: candidate.algorithm.name == algorithm


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
    return lambda node, candidate: (
        node.layer.name, candidate.algorithm.name, candidate.variant.config_text) in admitted
