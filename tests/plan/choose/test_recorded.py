"""The conversions and reshapes that programs are built with, and the whole plans that are compared
for drawn times, are those that were recorded."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.errors import DeviceLostError, GossamerError, UnsupportedError
from gossamer.facts import PLUS_MINUS_ONE, REAL, TERNARY, integers
from gossamer.measure import Timing
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.host import HostIm2col
from gossamer.ops.part.problem import ReshapeProblem
from gossamer.plan.candidate import Candidate
from gossamer.plan.choose import refine
from gossamer.plan.choose.assigner import Assigned, Assigner
from gossamer.plan.choose.builder import (
    LayerChoice,
    ProgramBuilder,
    is_packed_alike,
    may_be_conversion,
)
from gossamer.plan.choose.outcomes import EndToEnd, Planned
from gossamer.plan.choose.restriction import Restriction, allowed, free
from gossamer.plan.measurement import Measurement
from gossamer.plan.policy import EFFORTS
from gossamer.plan.program import Layer, MeasuredLayer, Program, Step
from gossamer.tensor import Format, TensorSpec, default_spec
from tests.recorded import Recorded, as_text, digest
from tests.recorded.outcomes import outcome

SHAPES: tuple[tuple[int, ...], ...] = ((4,), (2, 4), (2, 4, 1, 1), (2, 8, 1, 1), (2, 1, 2, 2),
                                       (2, 4, 3), (2, 2, 2, 1), (1, 8))
FORMATS = (Format("NCHW"), Format("NHWC"), Format("NCHW", "float16"), Format("NHWC", "float16"),
           Format("packed32", "bits"), Format("packed64", "trits"))


def _specs(shape: tuple[int, ...]) -> Iterable[TensorSpec]:
    yield default_spec(shape)
    yield default_spec(shape, "float16")
    for each in FORMATS if len(shape) == 4 else FORMATS[4:]:
        try:
            yield TensorSpec(shape, each)
        except (GossamerError, ValueError):
            continue


def test_shapes_that_are_packed_alike(recorded: Recorded) -> None:
    texts = {f"{one} and {other}": str(is_packed_alike(one, other))
             for one, other in itertools.product(SHAPES, SHAPES)}
    for name, values in itertools.product(("a", "a as b", "b as ", "a as", "c as a as b"),
                                          ([], ["a"], ["b", "a"], ["a as b"])):
        texts[f"{name!r} of {values}"] = str(may_be_conversion(name, values))
    recorded("packed_alike", texts)


def test_options_of_reshapes(recorded: Recorded) -> None:
    """The dtypes and packed formats in which a reshape may read a value depend on the precision of
    the plan and on what is known of the values."""
    texts = {}
    facts = {"real": REAL, "signs": PLUS_MINUS_ONE, "ternary": TERNARY, "small": integers(-9, 9),
             "large": integers(0, 2048), "larger": integers(0, 2049)}
    for source, target, dtype, precision, known in itertools.product(
            SHAPES, SHAPES, ("float32", "float16", "int64"), ("fp32", "tf32", "fp16"), facts):
        if np.prod(source) != np.prod(target) or (dtype != "float32" and known == "large"):
            continue
        assigner = Assigner.__new__(Assigner)
        assigner._network = SimpleNamespace(specs={  # type: ignore[assignment]
            "x": default_spec(source, dtype), "y": default_spec(target, dtype)})
        assigner._tuner = SimpleNamespace(precision=precision)  # type: ignore[assignment]
        layer = Layer("reshape", ["x"], ["y"], ReshapeProblem(default_spec(source, dtype), target),
                      facts={} if known == "real" else {"y": facts[known]})
        text = outcome(assigner._reshapes, layer, text=lambda options: " ".join(
            f"{read}-{given}" for read, given in options))
        texts[f"{source} to {target} {dtype} {precision} {known}"] = text
    recorded("reshapes", {"all": digest(texts), **{
        case: text for index, (case, text) in enumerate(texts.items()) if index % 5 == 0}})


class _Named(HostIm2col):
    """An algorithm with any name."""

    def __init__(self, name: str, dense: bool = True, exact: bool = False) -> None:
        self.name, self.dense, self.exact = name, dense, exact


def _drawn_program(seed: int) -> str:
    """Returns the steps, aliases and specs of a program of drawn layers and formats."""
    rng = random.Random(seed)
    algorithm, device = _Named("any"), SimpleNamespace(name="device")

    def decide(builder: ProgramBuilder, layer: Layer) -> LayerChoice:
        if layer.inserted:
            return LayerChoice(algorithm, Variant((), (builder.specs[layer.inputs[0]],), tuple(
                layer.problem.outputs)), device)  # type: ignore[arg-type]
        return LayerChoice(algorithm, Variant((), tuple(
            rng.choice(list(_specs(builder.specs[name].shape))) for name in layer.inputs), tuple(
            rng.choice(list(_specs(spec.shape))) for spec in layer.problem.outputs)),
            device)  # type: ignore[arg-type]

    shapes = {"x": (2, 4, 1, 1), "y": (2, 4), "k": (2, 2, 2, 1)}
    builder = ProgramBuilder(
        2, {name: rng.choice(list(_specs(shapes[name]))) for name in "xy"},
        {"k": np.zeros(shapes["k"], np.float32)}, decide,
        {"l1": default_spec((2, 4)).format} if seed % 3 == 0 else None,
        {"x": "given"} if seed % 2 else None)
    lines = []
    for index in range(6):
        name = rng.choice(list(shapes))
        shape = rng.choice([each for each in SHAPES if np.prod(each) == np.prod(shapes[name])])
        output = rng.choice((f"v{index}", f"{name} as NHWC", f"{name} as float16"))
        if output in shapes:
            continue
        known = rng.choice((REAL, PLUS_MINUS_ONE))
        names = [name] if rng.random() < 0.6 else [name, rng.choice(list(shapes))]
        problem: Any = SimpleNamespace(op="op", outputs=(default_spec(shape),))
        if len(names) == 1 and rng.random() < 0.5:
            problem = ReshapeProblem(default_spec(shapes[name]), shape)
        layer = Layer(f"l{index}", names, [output], problem, facts={output: known})
        shapes[output] = shape
        lines.append(outcome(builder.add, layer))
    for name, spec in list(builder.specs.items())[:3]:
        lines += [f"{name} {each} {builder.has(name, each)}" for each in _specs(spec.shape)]
    lines.append(outcome(builder.finish, {name: rng.choice(list(_specs(shapes[name])))
                                          for name in list(shapes)[-2:]}, text=lambda made: ""))
    program = builder.program
    steps = "; ".join(f"{step.layer.name} {step.layer.source} {' '.join(step.inputs)}"
                      for step in program.steps)
    found = [str(getattr(step.layer.problem, "facts", "")) for step in program.steps]
    return (f"{digest([lines, program.aliases, program.specs, program.inputs, program.outputs])} "
            f"{digest(found)} {len(program.steps)} {as_text(program.aliases)} "
            f"{as_text(program.outputs)}; {steps}")


def test_programs_of_drawn_formats(recorded: Recorded) -> None:
    recorded("built_programs", {str(seed): _drawn_program(seed) for seed in range(80)})


class _Assigner:
    """Assigns to each layer its cheapest candidate that a restriction allows."""

    def __init__(self, nodes: list[MeasuredLayer], device: Any, refuses: str,
                 is_lost: bool) -> None:
        self.nodes, self.device, self.refuses, self.is_lost = nodes, device, refuses, is_lost

    def assigned(self, restriction: Restriction) -> Assigned:
        taken = [(node, min(allowed(restriction, node), key=lambda candidate: candidate.cost))
                 for node in self.nodes]
        return Assigned(taken, {}, sum(candidate.cost for _, candidate in taken), ())

    def checked(self, restriction: Restriction, first: Assigned) -> Assigned:
        admitted = {candidate.algorithm.name for node in self.nodes for candidate in node.candidates
                    if restriction(node, candidate)}
        if admitted == {self.refuses}:
            raise (DeviceLostError if self.is_lost else ValueError)("it cannot be built\nin detail")
        return first

    def program(self, assigned: Assigned, why: str = "") -> Program:
        steps = [Step(node.layer, candidate.algorithm, candidate.variant, node.device, [], [],
                      {"": why}, node.candidates, in_place=node.layer.name == "in place")
                 for node, candidate in assigned.taken]
        return Program(1, steps, {}, {}, {}, {}, {}, self.nodes, cost_us=assigned.cost_us)


def _taken(program: Program) -> str:
    return " ".join(f"{step.algorithm.name}{step.variant['n']}" for step in program.steps)


def _drawn_comparison(seed: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns which plans are compared and taken for drawn candidates and times."""
    rng = random.Random(seed)
    device: Any = SimpleNamespace(on_processors=seed % 4 == 3, name="device")
    host: Any = SimpleNamespace(name="host")
    algorithms = [_Named("dense"), _Named("other"), _Named("sparse", dense=False),
                  _Named("bits", exact=True)][:rng.choice((1, 2, 3, 4, 4))]
    nodes = []
    for index in range(rng.choice((1, 2, 3, 4))):
        scale = rng.choice((1.0, 10.0, 10.0, 200.0))
        spec = (default_spec((1, 3)),)
        candidates = []
        for algorithm in rng.sample(algorithms, rng.randint(1, len(algorithms))):
            for number in range(rng.choice((1, 2, 3, 9))):
                variant = Variant((("n", number),), spec, rng.choice((spec, spec, (
                    default_spec((1, 3), "float16"),))))
                cost = round(scale * rng.uniform(0.9, rng.choice((1.1, 2.0))), 3)
                candidates.append(Candidate(algorithm, variant, Measurement.of(
                    algorithm, variant, Timing(cost, cost, cost, 3)) if rng.random() < 0.9 or
                    not candidates else Measurement.of(algorithm, variant, failure="wrong")))
        problem: Any = f"problem {rng.randrange(3)}"
        layer = Layer(rng.choice((f"layer {index}", f"layer {index}", "in place"))
                      if not nodes else f"layer {index}", [], [], problem,
                      density=rng.choice((None, 0.0, 0.5)))
        nodes.append(MeasuredLayer(layer, host if rng.random() < 0.04 else device, candidates, {}))
    effort = ("quick", "normal", "max")[seed % 3]
    limits = replace(EFFORTS[effort], replacements=rng.choice((0, 1, 3, 20)),
                     replacement_gain=rng.choice((0.0, 0.01, 0.1)))

    def verified(triples: Iterable[tuple[Any, Candidate, Any]]) -> list[Candidate]:
        return [candidate.with_exclusion("wrong") if digest([seed, layer.name])[0] in "01" else
                candidate for layer, candidate, _ in triples]

    tuner: Any = SimpleNamespace(effort=effort, limits=limits, is_over=seed % 11 == 10,
                                 verified=verified)
    assigner: Any = _Assigner(nodes, device, rng.choice(("", "", "other", "sparse")), seed % 9 == 8)
    fails, is_part = rng.choice((0.0, 0.2)), rng.choice(("", "", "bits", "dense", "other"))
    timed: list[str] = []

    def end_to_end(name: str, programs: Sequence[Program], *rest: Any,
                   brief: bool = False) -> list[EndToEnd]:
        timed.append(f"{'brief ' if brief else ''}{len(programs)}")
        times = []
        for program in programs:
            own = random.Random(f"{seed} {_taken(program)}")
            median = (program.cost_us or 0.0) * own.uniform(0.8, 1.1)
            width = own.choice((0.001, 0.03))
            times.append(EndToEnd(failure="does not run: full") if own.random() < fails else
                         EndToEnd(Timing(median, median * (1 - width), median * (1 + width), 3)))
        return times

    def accurate(program: Program) -> Program:
        if rng.random() < 0.08:
            raise UnsupportedError("less accurate than the tolerance\nin detail")
        return program

    monkeypatch.setattr(refine, "end_to_end", end_to_end)
    monkeypatch.setattr(refine, "program_key", lambda program, device: _taken(program))
    monkeypatch.setattr(refine, "problem_key", lambda problem: problem)
    monkeypatch.setattr(refine, "is_one_part", lambda program: len(program.steps) == 1
                        and program.steps[0].algorithm.name == is_part)
    chosen = Planned(assigner.program(assigner.assigned(free)), assigner)
    try:
        found = refine.refined("net", chosen, device, tuner, accurate)
    except GossamerError as error:
        return f"{type(error).__name__}: {error}"
    if not found.plans:
        return "nothing to compare"
    rows = [f"{row['plan']}{'*' if row['is_taken'] else ''}: {row['outcome']}"
            for row in found.plans]
    return f"{digest(found.plans)} {found.why}; {_taken(found.program)}; {timed}; {digest(rows)}" \
        + f"; {rows[seed % len(rows)]}"


def test_plans_that_are_compared(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded("compared_plans", {str(seed): _drawn_comparison(seed, monkeypatch)
                                for seed in range(300)})
