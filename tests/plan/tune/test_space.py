"""What is listed for a layer follows from the precisions that are allowed for it and for the layers
beside it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.expression import apply
from gossamer.facts import BYTES, ValueFacts
from gossamer.ops.algorithm import PRECISIONS, Algorithm, State, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.elementwise.fused import FusedElementwise
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.weights import Weights, WeightsInfo
from gossamer.plan.policy import EFFORTS
from gossamer.plan.tune.space import Space
from gossamer.tensor import default_spec
from tests.ops.recording import RecordingDevice

PROBLEM = Conv2dProblem(2, 8, 6, 6, 4, (1, 1))


class Listed(Algorithm):
    """An algorithm whose variants are listed only."""

    op = "conv2d"

    def supports(self, problem: Any, device: Device) -> str | None:
        return None

    def prepare(self, weights: Weights, problem: Any, variant: Variant, device: Device) -> State:
        raise AssertionError("nothing is built")


class Rounding(Listed):
    """A library with a variant of each precision. rounds_sums: whether that of float16 rounds."""

    name, vendor = "rounding", "a vendor"

    def __init__(self, *, rounds_sums: bool) -> None:
        self.rounds_sums = rounds_sums  # type: ignore[misc]

    def variants(self, problem: Any, device: Device) -> Iterator[Variant]:
        raise AssertionError("it is asked for precisions")

    def variants_in(self, problem: Any, device: Device,
                    precisions: Sequence[str]) -> Iterator[Variant]:
        yield from (Variant((), problem.inputs, problem.outputs, precision)
                    for precision in precisions)


@pytest.mark.parametrize(("rounds_sums", "facts", "expected"), [
    (False, (), ["fp32"]), (False, (BYTES,), ["fp32", "tf32", "fp16"]),
    (True, (BYTES,), ["fp32", "tf32"])])
def test_precisions_that_change_nothing_are_always_allowed(
        rounds_sums: bool, facts: tuple[ValueFacts, ...], expected: list[str]) -> None:
    problem = replace(PROBLEM, facts=facts, weights_info=WeightsInfo(facts=BYTES), result=BYTES)
    listed = Space(EFFORTS["quick"], ("fp32",), keeps_precisions=False)
    variants = listed.within_effort(Rounding(rounds_sums=rounds_sums), problem, find("host"))
    assert [variant.precision for variant in variants] == expected


@pytest.mark.parametrize(("precisions", "facts", "expected"), [
    (("fp32",), (), {"fp32"}), (("fp32",), (BYTES,), {"fp32", "fp16"}),
    (PRECISIONS, (), {"fp32", "fp16"})])
def test_floats_that_are_rounded_to_integers_stay_in_float32(
        compiled_device: Device, precisions: Sequence[str], facts: tuple[ValueFacts, ...],
        expected: set[str]) -> None:
    """Integers of few bits are exact in float16, floats are not, even where the result is such an
    integer: rounded to float16, a float may be rounded to another integer."""
    problem = ElementwiseProblem((default_spec((2, 4, 6, 5)),), apply("round"), facts=facts,
                                 result=BYTES)
    listed = Space(EFFORTS["quick"], precisions, keeps_precisions=False)
    variants = listed.within_effort(FusedElementwise(), problem, compiled_device)
    assert {variant.precision for variant in variants} == expected
    exact = {variant.precision for variant in variants
             if variant.is_as_precise_as_float32(problem)}
    assert exact == ({"fp32", "fp16"} if facts else {"fp32"})


class Threaded(Listed):
    """Twenty tiles, each with one thread and with all threads."""

    name = "threaded"

    def variants(self, problem: Any, device: Device) -> Iterator[Variant]:
        for tile, threads in itertools.product(range(20), (1, "all")):
            yield Variant((("tile", tile), ("threads", threads)), problem.inputs, problem.outputs)


@pytest.mark.parametrize(("size", "on_host", "tiles", "threads"), [
    (6, True, 8, {1, "all"}), (600, True, 8, {"all"}), (6, False, 4, {1, "all"})])
def test_numbers_of_threads_on_the_host_do_not_count_as_configs(
        size: int, on_host: bool, tiles: int, threads: set[int | str]) -> None:
    """On other devices a setting of the same name is the number of work-items."""
    problem = replace(PROBLEM, height=size, width=size)
    listed = Space(EFFORTS["quick"], ("fp32",), keeps_precisions=False)
    variants = listed.within_effort(Threaded(), problem,
                                    find("host") if on_host else RecordingDevice())
    assert {variant["tile"] for variant in variants} == set(range(tiles))
    assert {variant["threads"] for variant in variants} == threads
    assert len(variants) == tiles * len(threads)
