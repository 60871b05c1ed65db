"""Networks of attention, norms and moves: what their fusions are recognised to be, and plans."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gossamer.model.infer.resolve import resolve
from gossamer.model.load import load
from gossamer.model.passes.optimise import optimise
from gossamer.ops.fused.problem import reference
from gossamer.plan.fusion import find_fusions, recognising
from gossamer.plan.lower.rules import lower
from gossamer.plan.program import Layer
from tests.ops.harness import random_inputs
from tests.simulated.device import HARDWARE, SimulatedDevice
from tests.simulated.plans import check, token_case
from tests.simulated.recognised import OF_TOKENS, RECOGNISED
from tests.simulated.tokens import token_network

DEVICE = SimulatedDevice(HARDWARE["h200"])
NETWORKS = 24


def fusions_of(seed: int, path: Path, batch: int) -> Iterator[Layer]:
    path.write_bytes(token_network(seed).SerializeToString())
    graph = load(str(path))
    layers, _ = lower(resolve(optimise(graph), batch))
    yield from find_fusions(layers, [info.name for info in graph.outputs])


def compare(fusion: Layer) -> set[str]:
    """Compare what is recognised in a fusion with its layers, in each layout. Returns the names of
    the algorithms."""
    problem, found = fusion.problem, set()
    inputs = random_inputs(problem)
    expected = reference(problem, inputs, fusion.weights)[0]
    finite = expected[np.isfinite(expected)]
    for algorithm in recognising(fusion):
        if algorithm.name not in RECOGNISED or algorithm.supports(problem, DEVICE) is not None:
            continue
        found.add(algorithm.name)
        by_specs = {(each.inputs, each.outputs): each
                    for each in algorithm.variants(problem, DEVICE)}
        for variant in by_specs.values():
            (result,) = RECOGNISED[algorithm.name](problem, variant, inputs, fusion.weights)
            np.testing.assert_allclose(
                result, expected,
                rtol=1e-5, atol=1e-6 * float(np.abs(finite).max(initial=1)),
                err_msg=f"{algorithm.name} of {problem.describe()} as {variant.inputs}")
    return found


@pytest.mark.filterwarnings("ignore:.*infinite values")
@pytest.mark.parametrize("first", range(0, NETWORKS, NETWORKS // 2))
def test_fusions_are_what_they_are_recognised_to_be(first: int, tmp_path: Path) -> None:
    found = set[str]()
    with np.errstate(all="ignore"):
        for seed in range(first, first + NETWORKS // 2):
            for fusion in fusions_of(seed, tmp_path / "network.onnx", batch=seed % 3):
                found |= compare(fusion)
    assert found == set(OF_TOKENS)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_plans_of_networks_of_tokens_are_right(seed: int, tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path))
    check(token_case(seed), token_network)
