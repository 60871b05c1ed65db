"""Which states of steps are prepared again for a further context, what steps are asked to do, and
what preparing costs, are as they were recorded."""

from __future__ import annotations

import itertools
import random
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Buffer
from gossamer.device.host import HostDevice
from gossamer.errors import InputError
from gossamer.measure import Timing
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.launch import Launch
from gossamer.ops.weights import Weights
from gossamer.plan import prepare
from gossamer.plan.prepare import BuildCost, BuiltElsewhere, build, responsive, side_by_side
from gossamer.plan.program import Layer, Step
from gossamer.plan.run import prepared_steps
from gossamer.plan.run.prepared_steps import PreparedSteps
from gossamer.tensor import default_spec
from tests.recorded import Recorded, as_text, digest
from tests.recorded.outcomes import outcome


class _Device(HostDevice):
    """The host, which notes what is copied to it and from it."""

    def __init__(self, side: bool = False, compiles: bool = False) -> None:
        super().__init__()
        self.log: list[str] = []
        self._side, self._compiles = side, compiles

    @property
    def builds_side_by_side(self) -> bool:
        return self._side

    @property
    def compiles(self) -> bool:
        return self._compiles

    def write(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        self.log.append(f"write {array.nbytes} on {stream}")
        super().write(buffer, array, stream)

    def read(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        self.log.append(f"read {array.nbytes} on {stream}")
        super().read(buffer, array, stream)

    def time(self, work: Any, stream: Any = None) -> float:
        work(stream)
        return 5.0


class _Algorithm:
    """An algorithm that notes its launches, or refuses what it reads."""

    def __init__(self, name: str, log: list[str], refuses: bool) -> None:
        self.name, self.log, self.refuses = name, log, refuses

    def launch(self, state: State, inputs: Any, outputs: Any, workspace: Any,
               stream: Any = None) -> None:
        if self.refuses:
            raise InputError("an index is out of range")
        self.log.append(f"{self.name} {len(inputs)} {len(outputs)} "
                        f"{getattr(workspace, 'nbytes', workspace)} on {stream}")


def _drawn_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns which states of a program are prepared at first and again, and its launches."""
    rng = random.Random(seed)
    device, host, log = _Device(side=seed % 2 > 0), _Device(), []
    owned, packed = device.empty(4, "owned"), device.empty(8, "packed")
    steps = []
    for index in range(rng.randint(1, 5)):
        rows = rng.choice((0, 1, 1, 2))
        specs = tuple(default_spec((rng.choice((rows, 1)), 3)) for _ in range(rng.choice((1, 2))))
        problem: Any = f"problem {index}"
        layer = Layer(f"layer {index}", [], [], problem, source=f"node {index}")
        variant = Variant((), (default_spec((1, 2)),) * rng.choice((1, 2)), specs, workspace=16)
        algorithm: Any = _Algorithm(f"algorithm {index}", log, rng.random() < 0.05)
        steps.append(Step(layer, algorithm, variant, host if rng.random() < 0.3 else device,
                          ["x"] * len(variant.inputs), ["y"] * len(specs),
                          in_place=rng.random() < 0.2,
                          placed_variant=variant if rng.random() < 0.3 else None))
    program: Any = SimpleNamespace(steps=steps, prepared=None)
    kinds = {step.layer.name: rng.choice(("kernels", "kernels", "none", "owns", "data"))
             for step in steps}

    def built(algorithm: Any, weights: Any, problem: Any, variant: Variant,
              on: Any) -> tuple[State, BuildCost]:
        kind = kinds[f"layer {problem[-1]}"]
        arguments = {"kernels": (packed, 7), "owns": (packed, owned), "data": (packed,)}
        launches = [] if kind == "none" else [
            Launch(None, (1,), (1,), arguments[kind])] * 2  # type: ignore[arg-type]
        state = State(problem, variant, on, launches, 1 if kind == "data" else None, (packed,))
        made.append(f"{problem[-1]} {kind}")
        return state, BuildCost(float(len(made)), False, None)

    monkeypatch.setattr(prepared_steps, "build", built)
    buffers: Any = SimpleNamespace(workspace=SimpleNamespace(nbytes=99),
                                   of=lambda name: device.empty(64, name))
    texts, kept = [], []
    for turn in range(3):
        made: list[str] = []
        if turn == 2 and steps:
            steps[0].variant = Variant((("n", 1),), steps[0].variant.inputs,
                                       steps[0].variant.outputs, workspace=32)
        prepared = PreparedSteps(program, device, buffers)
        kept.append(prepared)
        texts.append(f"{sorted(made)} {[cost is not None for cost in prepared.builds]} "
                     f"{outcome(prepared.queue, 's')}")
        shared = [state is other for state, other in zip(prepared.states, kept[0].states,
                                                         strict=True)]
        texts.append(f"{shared} {device.log} {log}")
        device.log.clear()
        log.clear()
    monkeypatch.setattr(prepared_steps, "interleave", lambda tasks, **options: [
        Timing(8.0, 4.0, 16.0, options["repeats"])])
    texts.append(outcome(prepared.profile, 4))
    return " | ".join([digest(texts), *texts[2:3], texts[-1]])


def test_steps(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded("prepared_steps", {str(seed): _drawn_steps(seed, monkeypatch) for seed in range(60)})


class _Clock:
    """A clock that the test sets."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


def _cost(seed: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns the cost of preparing a drawn variant: kernels, packed forms and other buffers."""
    rng, clock = random.Random(seed), _Clock()
    monkeypatch.setattr("gossamer.plan.prepare.time", clock)
    device = _Device(side=rng.random() < 0.5, compiles=seed % 2 > 0)
    weights = Weights({"weight": np.zeros((3, 4), np.float32)}, device, "layer")
    kernels: list[Any] = [SimpleNamespace(
        code_bytes=rng.choice((None, 0, 100, 1000)), from_cache=rng.random() < 0.3)
        for _ in range(rng.choice((0, 1, 3)))]
    tables = [device.empty(size, "table") for size in (16, 32)]

    def prepared(watched: Weights, problem: Any, variant: Variant, on: Any) -> State:
        arguments: list[Any] = []
        for form in rng.sample(["a", "b", "c"], rng.choice((0, 1, 2))):
            def pack(arrays: Any, form: str = form) -> np.ndarray:
                clock.now += 3
                return arrays["weight"][:ord(form) - 96]
            arguments += [watched.packed(form, pack)] * rng.choice((1, 2))
        clock.now += 2
        arguments += [*tables[:rng.choice((0, 1, 2))], 7]
        launches = [Launch(kernel, (1,), (1,), tuple(arguments)) for kernel in kernels * 2]
        return State(problem, variant, on, launches)

    algorithm: Any = SimpleNamespace(prepare=prepared)
    elsewhere = BuiltElsewhere({}, 100.0, rng.random() < 0.5) if rng.random() < 0.3 else None
    texts = []
    for _ in range(2):
        state, cost = build(algorithm, weights, None, Variant((), (), ()),  # type: ignore[arg-type]
                            device, elsewhere)
        texts.append(f"{cost.seconds} {cost.from_cache} {cost.nbytes} "
                     f"{as_text(dict(sorted(cost.forms.items())))} {len(state.packed)}")
    return ", then ".join(texts)


def test_costs_of_preparing(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {str(seed): _cost(seed, monkeypatch) for seed in range(60)}
    for side, count in itertools.product((False, True), (0, 1, 5)):
        called: list[int] = []

        def make(index: int, called: list[int] = called) -> int:
            called.append(index)
            if index == 1:
                raise ValueError("cannot be made")
            return index

        makers = [lambda index=index, make=make: make(index) for index in range(count)]
        built = side_by_side(_Device(side), makers)
        before = sorted(called)
        texts[f"side by side {side} {count}"] = f"{before} " + " ".join(map(outcome, built))
    before_s = sys.getswitchinterval()
    for interval in (1e-4, 2e-4, 4e-4, 5e-3):
        sys.setswitchinterval(interval)
        with responsive():
            within = sys.getswitchinterval()
        texts[f"interval {interval}"] = f"{within:.4f} {sys.getswitchinterval():.4f}"
    sys.setswitchinterval(before_s)
    assert before_s > prepare._SWITCH_SECONDS
    recorded("costs_of_preparing", texts)
