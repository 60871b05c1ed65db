"""Tests that random sparse weights have the requested density and the spread of real ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer_bench.layer_tables import CAFFENET, ConvLayer
from gossamer_bench.sparse_data import published_layers
from gossamer_bench.sparse_weights import CHANNELS, ROWS, TAPS, drawn, redrawn

LAYER = ConvLayer("net/layer", 256, 13, 256, 3, 1, 1)


def spread(counts: np.ndarray) -> float:
    """Returns the standard deviation over the mean."""
    return float(counts.std() / counts.mean())


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 6), st.sampled_from([1, 3, 5]),
       st.floats(0.001, 1))
def test_the_density_is_exact_and_no_value_is_zero(groups: int, channels: int, rows: int,
                                                   kernel: int, density: float) -> None:
    layer = ConvLayer("a", groups * channels, 8, groups * rows, kernel, groups=groups)
    weight = drawn(layer, density)
    assert weight.shape == (groups * rows, channels, kernel, kernel)
    assert weight.dtype == np.float32 and np.isfinite(weight).all()
    assert np.count_nonzero(weight) == round(density * weight.size)


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 9))
def test_a_mask_is_thinned_or_filled_up(before: float, after: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    mask = random.random((6, 5, 3, 3)) < before
    result = redrawn(mask, after, random)
    assert np.count_nonzero(result) == round(after * mask.size)
    thinner, denser = sorted((mask, result), key=np.count_nonzero)
    assert not (thinner & ~denser).any()


def test_the_same_name_gives_the_same_weights() -> None:
    first, again, other = (drawn(layer, 0.1) for layer in (
        LAYER, LAYER, replace(LAYER, name="net/other")))
    assert np.array_equal(first, again)
    assert not np.array_equal(first != 0, other != 0)


def test_rows_channels_and_taps_are_uneven() -> None:
    mask = drawn(LAYER, 0.1) != 0
    rows, channels, taps = (mask.sum(axes) for axes in ((1, 2, 3), (0, 2, 3), (0, 1)))
    assert 2 < rows.max() / rows.mean() < 3.7
    for counts, expected in ((rows, ROWS), (channels, CHANNELS)):
        assert 0.7 * expected < spread(counts) < 1.3 * expected
    assert spread(taps) > 0.2


def test_the_size_of_activations_is_kept() -> None:
    x = np.random.default_rng(1).standard_normal((LAYER.channels * 9, 200))
    y = drawn(LAYER, 0.05).reshape(LAYER.out_channels, -1) @ x
    assert np.mean(np.square(np.maximum(y, 0))) == pytest.approx(1, rel=0.2)


def test_spreads_are_those_of_real_layers(shared: Path) -> None:
    """The real layers are those of SkimCaffe's AlexNet without conv1, which was hardly pruned."""
    spreads: dict[float, list[float]] = {ROWS: [], CHANNELS: [], TAPS: []}
    for sparse in published_layers(shared / "data"):
        network, _, name = sparse.layer.name.partition("/")
        if network == "alexnet" and name != "conv1":
            mask = sparse.weights() != 0
            spreads[ROWS].append(spread(mask.sum((1, 2, 3))))
            for group in np.split(mask, sparse.layer.groups):
                spreads[CHANNELS].append(spread(group.sum((0, 2, 3))))
                spreads[TAPS].append(spread(group.sum((0, 1))))
    assert len(spreads[ROWS]) == len(CAFFENET) - 1
    for expected, real in spreads.items():
        assert min(real) < expected < max(real)
        assert np.mean(real) == pytest.approx(expected, rel=0.15)
