"""Records of the algorithms for pruned weights: what variants of each kind prepare, and the
tables that blocks of similar output channels are stored in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from gossamer.ops.algorithm import Epilogue, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.common import row_blocks
from gossamer.ops.weights import Weights
from tests.ops.candidates import DEVICES, described, own_algorithms
from tests.ops.conv2d.drawn import EPILOGUES, Drawn, with_arrays
from tests.recorded import Recorded, as_text, digest

MOST = {"h200": 18, "sm_80": 4}
"""The most variants of an algorithm that are prepared for a layer on each device."""


def pruned(number: int, problem: Conv2dProblem, density: float) -> Drawn:
    """Returns a layer with constants of which a share is not 0, and with one channel of zeros."""
    def change(weight: np.ndarray) -> np.ndarray:
        drawn = np.random.default_rng(number).random(weight.shape)
        drawn[number % len(drawn)] = 1
        return np.where(drawn < density, weight, 0)

    return with_arrays(problem, number, change, 150_000)


def layers() -> Iterator[tuple[str, Drawn]]:
    """Yields layers for which clusters, several blocks and parts of the channels are offered."""
    plain = Conv2dProblem(1, 64, 14, 14, 80, (3, 3), pads=(1, 1, 1, 1))
    for number, (name, problem, density) in enumerate((
            ("3x3", plain, 0.15),
            ("strided", replace(plain, stride=(2, 2), height=15, width=17, channels=48), 0.2),
            ("1x1", replace(plain, kernel=(1, 1), pads=(0,) * 4, channels=160, batch=3), 0.1),
            ("groups", replace(plain, groups=2, dilation=(1, 2), out_channels=66), 0.25),
            ("images", replace(plain, batch=16, height=7, width=7), 0.1),
            ("images of one pixel", replace(plain, batch=64, height=1, width=1, kernel=(1, 1),
                                            pads=(0,) * 4, channels=130), 0.1),
            ("wide", replace(plain, kernel=(1, 5), pads=(0, 2, 0, 2), stride=(1, 2), width=37,
                             batch=2), 0.05),
            ("many images", replace(plain, batch=33, channels=24, height=5, width=6), 0.2))):
        epilogue: Epilogue = EPILOGUES[(3 * number) % len(EPILOGUES)]
        yield name, pruned(number, replace(problem, epilogue=epilogue), density)


def chosen(variants: list[Variant], most: int) -> list[Variant]:
    """Returns some of the variants, at equal distances; one where their code is generated."""
    most = 1 if any(variant.build_seconds for variant in variants) else most
    return variants[::-(-len(variants) // most)] if variants else []


@pytest.mark.slow
@pytest.mark.parametrize("name", MOST)
def test_what_variants_prepare(recorded: Recorded, name: str) -> None:
    device, found = DEVICES[name](), {}
    for case, layer in layers():
        problem, arrays = layer.problem, layer.arrays
        assert arrays is not None
        for algorithm in own_algorithms(problem):
            if "conv2d.sparse" not in type(algorithm).__module__:
                continue
            if (reason := algorithm.supports(problem, device)) is not None:
                found[f"{case} {algorithm.name}"] = reason
                continue
            variants = list(algorithm.variants(problem, device))
            found[f"{case} {algorithm.name}"] = (
                f"{len(variants)} {digest([variant.config_text for variant in variants])}")
            weights = Weights(arrays, device, "the test")
            for variant in chosen(variants, MOST[name]):
                state = described(algorithm.prepare(weights, problem, variant, device))
                us = algorithm.expected_us(problem, variant, device)
                found[f"{case} {algorithm.name} {variant.config_text} {variant.precision}"] = (
                    f"{digest(state)} {'' if us is None else format(us, '.4g')}")
    recorded(f"sparse_{name}", found)


def test_tables_of_blocks(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for number in range(120):
        rng = np.random.default_rng(number)
        groups, per_group = int(rng.choice([1, 1, 2, 3])), int(rng.choice([1, 2, 5, 9, 17, 33]))
        columns = tuple(rng.choice([1, 2, 3], 3))
        weight = rng.integers(1, 9, (groups * per_group, *columns)) * (
            rng.random((groups * per_group, *columns)) < rng.choice([0.0, 0.1, 0.4, 0.8, 1.0]))
        rows, most = int(rng.choice([1, 2, 3, 4, 8, 16])), int(rng.choice([1, 2, 3, 8]))
        monkeypatch.setattr(row_blocks, "_CANDIDATES", most)
        made = row_blocks.table(weight, groups, rows)
        mask = weight[:per_group].reshape(per_group, -1) != 0
        blocks = row_blocks.cluster(mask, rows)
        found[f"{number}, {groups} x {per_group} of {rows}, {most}"] = (
            f"{as_text(blocks)} {digest(made)}")
    recorded("row_blocks", found)
