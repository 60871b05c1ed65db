"""What the algorithms of back-propagation offer for many networks is recorded, and what the float64
reference trains."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gossamer.device import blas
from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, Variant
from gossamer.ops.backprop import OP, host_updates
from gossamer.ops.backprop.blocked import in_turn, pipeline, pipeline_mma
from gossamer.ops.backprop.blocked.blocked import Blocked
from gossamer.ops.backprop.host import NumpyBackprop
from gossamer.ops.backprop.per_step.per_step import PerStep
from gossamer.ops.backprop.persistent import persistent
from gossamer.ops.backprop.problem import ACTIVATIONS, LOSSES, OUTPUTS, BackpropProblem
from gossamer.ops.backprop.reference import reference
from gossamer.ops.weights import Weights
from tests.ops.candidates import DEVICES, NamingDevice, described, stated
from tests.recorded import Recorded, digest
from tests.recorded.outcomes import outcome
from tests.simulated.device import H200, OPENCL

INPUTS = (1, 2, 4, 7, 8, 9, 31, 32, 33, 127, 128, 129, 500, 784, 1024, 4000)
HIDDEN = (1, 2, 4, 5, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 300)
OUTPUTS_OF = (1, 2, 3, 4, 10, 15, 16, 17, 31, 32, 33)
SAMPLES = (0, 1, 2, 31, 32, 33, 63, 64, 65, 129)


def _problems() -> Iterator[BackpropProblem]:
    """Yields problems of drawn sizes and settings, and problems at the bounds of the algorithms."""
    rng = np.random.default_rng(4)

    def one_of(values: tuple[Any, ...]) -> Any:
        return values[rng.integers(len(values))]

    for turn in range(110):
        hidden = [one_of(HIDDEN) for _ in range((1, 1, 1, 1, 0, 2, 1, 3)[turn % 8])]
        sizes = (one_of(INPUTS), *hidden, one_of(OUTPUTS_OF))
        loss = one_of(LOSSES)
        # three of four problems are of plain online training, which all algorithms can do
        plain = turn % 4 != 3
        adam = not plain and bool(rng.integers(2))
        yield BackpropProblem(
            sizes, 50, one_of(SAMPLES), one_of(ACTIVATIONS), loss,
            1 if plain and turn % 3 else one_of((1, 2, 5, 64)),
            not adam and turn % 5 == 4, one_of((1, 1, 2, 3)), adam=adam,
            output=one_of((None, *OUTPUTS)) if loss == "squared_error" else None,
            weighted=not plain and bool(rng.integers(2)))
    small = BackpropProblem((9, 5, 3), 6, 10)
    for changed in ({"networks": 1000, "samples": 2100}, {"networks": 0}, {"networks": 65_535},
                    {"networks": 65_536}, {"samples": 2**14 * 32}, {"samples": 2**14 * 32 + 1},
                    {"samples": 13_107}, {"samples": 13_108}, {"samples": 65_536 * 3, "batch": 16},
                    {"batch": 70_000, "samples": 65_535}, {"batch": 70_000, "samples": 65_536},
                    {"sizes": (9, 8, 8), "networks": 2**13, "batch": 2**13},
                    {"sizes": (9, 8, 7), "networks": 2**13, "batch": 2**13},
                    {"sizes": (2, 1, 1), "batch": 2**29, "samples": 1},
                    {"sizes": (9, 8 * 65_535, 1)}, {"sizes": (9, 8 * 65_535 + 1, 1)},
                    {"sizes": (64 * 65_535, 2)}, {"sizes": (128 * 2**10, 2**11, 1),
                                                  "networks": 32}, {"sizes": (9, 70_000, 3)}):
        yield BackpropProblem(**{**vars(small), **changed})


_MOST_SAMPLES, _MOST_UPDATES = 2100, 34
"""The most samples of a problem whose variants are prepared, and the most updates of one whose
variants of several launches an update are."""


def _prepared(algorithm: Algorithm, problem: BackpropProblem, variant: Variant,
              device: Device) -> str:
    """Returns a variant with a digest of its first and last launches, of which there may be
    thousands, all alike."""
    launches = algorithm.prepare(Weights({}, device, "training"), problem, variant,
                                 device).launches
    shown = launches if len(launches) < 22 else [*launches[:16], *launches[-5:]]
    return (f"{variant.config_text} {variant.workspace} {len(launches)} "
            f"{digest(list(map(described, shown)))}")


def test_what_algorithms_offer(recorded: Recorded) -> None:
    """Every variant of every algorithm is prepared for every problem."""
    devices = {name: of_kind() for name, of_kind in DEVICES.items() if name != "host"}
    devices["pairs"] = NamingDevice(replace(OPENCL, limits=replace(OPENCL.limits, subgroup_size=2)))
    first, *others = devices
    found = {}
    for number, problem in enumerate(_problems()):
        found[f"{number}"] = stated(problem)
        chosen = others[number % len(others)]
        for name, algorithm in itertools.product((first, chosen), OP.algorithms[:-1]):
            device, case = devices[name], f"{number} {name} {algorithm.name}"
            if (reason := algorithm.supports(problem, device)) is not None:
                found[case] = reason
                continue
            variants = list(algorithm.variants(problem, device))
            texts = [variant.config_text for variant in variants]
            updates = -(-problem.samples // problem.batch)
            if problem.samples <= _MOST_SAMPLES and (
                    updates <= _MOST_UPDATES or not isinstance(algorithm, PerStep)):
                texts = [_prepared(algorithm, problem, variant, device) for variant in variants]
            pipelined = isinstance(algorithm, Blocked) and algorithm.is_pipelined(problem, device)
            found[case] = f"{'pipelined ' * pipelined}{len(variants)} {digest(texts)} {texts[0]}"
    recorded("backprop", found)


def test_layouts_of_work_groups(recorded: Recorded) -> None:
    """The registers and the shared memory that every config needs, whether it fits or not."""
    layouts: list[tuple[Any, Any]] = [
        *((form, pipeline_mma._MmaLayout) for form in pipeline_mma.FORMS),
        *((form, pipeline._PipelineLayout) for form in pipeline.FORMS),
        *((form, in_turn._InTurnLayout) for form in in_turn.FORMS),
        *((form, persistent._PersistentLayout) for form in persistent.FORMS)]
    device, rng, found = NamingDevice(H200), np.random.default_rng(7), {}
    for inputs, hidden in itertools.product((1, 9, 64, 250, 784, 1001, 2000, 3500),
                                            (1, 5, 16, 17, 32, 33, 48, 49, 64)):
        outputs = int(rng.choice(OUTPUTS_OF[:-1]))
        problem = BackpropProblem((inputs, hidden, outputs), 1, 1)
        facts = []
        for form, layout_of in layouts:
            layout = layout_of(problem, form)
            numbers = [getattr(layout, name, 0) for name in
                       ("nbytes", "registers", "groups", "fetched", "lanes", "splits", "share")]
            facts.append([form.config, numbers, layout.macros])
            if not isinstance(form, persistent.PersistentForm):
                for spare in (-4, 0, 4):
                    device.limits = replace(H200.limits, shared_bytes_opt_in=layout.nbytes + spare)
                    facts[-1].append(str(form.why_unfit(problem, device)))
        found[f"{inputs}-{hidden}-{outputs}"] = " ".join(
            [digest(facts), *(f"{numbers[0]} {numbers[1]}," for _, numbers, *_ in facts[::5])])
    recorded("backprop_layouts", found)


def test_problems_and_their_errors(recorded: Recorded) -> None:
    found = {}
    for changed in ({"sizes": (3,)}, {"sizes": ()}, {"sizes": (3, 0)}, {"sizes": (1, 1)},
                    {"activation": "cubic"}, {"activation": "linear"}, {"loss": "hinge"},
                    {"output": "relu"}, {"output": "tanh"}, {"output": "tanh", "loss": LOSSES[1]},
                    {"adam": True}, {"adam": True, "velocity": True}, {"batch": 0}, {"rows": -1},
                    {"samples": -1}, {"networks": -1}, {"rows": 0, "samples": 0, "networks": 0},
                    {"density": 0.0}, {"density": 1.0}, {"density": 1.01}, {"density": 1e-9}):
        found[str(changed).replace(": ", " ")] = outcome(lambda changed=changed: BackpropProblem(
            **{"sizes": (3, 2), "rows": 1, "samples": 1, **changed}), text=stated)
    rng = np.random.default_rng(0)
    problem = BackpropProblem((5, 3, 2), 6, 4)
    for rows, share, kind in itertools.product((0, 1, 999, 1000, 1001, 2000, 2500),
                                               (0.0, 0.09, 0.15, 0.17, 0.34, 0.37, 0.7, 0.72, 1.0),
                                               ("binary", "real", "last is 2")):
        x = (rng.random((rows, 5)) < share).astype(np.float32)
        if kind == "real":
            x *= 1 - rng.random(x.shape, np.float32) / 2
        if kind == "last is 2" and rows:
            x[-1, -1] = 2
        like = problem.like(x, rows % 2 == 0)
        found[f"{rows} {share} {kind}"] = f"{like.density} {like.binary} {like.decay}"
    for density, binary, decay, velocity, weighted in itertools.product(
            (1.0, 0.25), *[(False, True)] * 4):
        drawn = BackpropProblem((5, 3, 2), 6, 4, velocity=velocity, networks=2, density=density,
                                binary=binary, decay=decay, weighted=weighted
                                ).example_inputs(np.random.default_rng(1))
        found[f"example {density} {binary} {decay} {velocity} {weighted}"] = digest(drawn)
    recorded("backprop_problems", found)


def test_results_of_the_reference(recorded: Recorded) -> None:
    """The reference computes in float64, so that six digits are the same on all machines."""
    found = {}
    for turn, (activation, loss, rule) in enumerate(itertools.product(
            ACTIVATIONS, LOSSES, ("plain", "velocity", "adam"))):
        for batch, networks in ((1, 2), (3, 1), (5, 1)):
            problem = BackpropProblem(
                (4, 3, 2)[:3 - turn % 2], 5, 7, activation, loss, batch, rule == "velocity",
                networks, adam=rule == "adam", weighted=batch == 3,
                output=OUTPUTS[turn % 3] if loss == "squared_error" and batch > 1 else None)
            inputs = [np.asarray(array, np.float64) if array.dtype == np.float32 else array
                      for array in problem.example_inputs(np.random.default_rng(turn))]
            inputs[1] += 0.25 * inputs[0][:, :1]
            inputs[3][:] = 0.3, 0.8 * (rule == "velocity"), 0.1 * (batch > 1)
            inputs[4][:, :problem.weight_count] *= 20
            parameters, losses = reference(problem, inputs, {})
            found[f"{problem.describe()} {rule}"] = (
                f"{' '.join(f'{value:.6g}' for value in losses.ravel()[:7])} "
                f"{digest([f'{value:.6g}' for value in (*losses.ravel(), *parameters.ravel())])}")
    recorded("backprop_results", found)


def test_how_the_host_trains(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    """Which updates the host makes, and whether BLAS gets one thread for them, changes no result.
    """
    noted: list[str] = []
    for name in ("one_by_one", "in_batches"):
        monkeypatch.setattr(host_updates, name, lambda problem, inputs, name=name:
                            noted.append(name) or [])
    monkeypatch.setattr(blas, "limited", lambda threads: noted.append(f"{threads} thread")
                        or nullcontext())
    found = {}
    for batch, adam, weighted, sizes in itertools.product(
            (1, 2, 4), (False, True), (False, True),
            ((2048, 2048, 2), (2048, 4094, 2), (2048, 8188, 4), (4096, 4096), (4097, 4096),
             (3, 2))):
        noted.clear()
        problem = BackpropProblem(sizes, 1, 1, batch=batch, adam=adam, weighted=weighted)
        NumpyBackprop().compute(problem, [], {})
        found[f"{problem.describe()}"] = " ".join(noted)
    recorded("backprop_on_the_host", found)
