"""Every rung of the ladder computes the network, with the launches and the memory of its rung."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bench_tests.ladder.networks import every_layer
from gossamer.bench.networks import reference
from gossamer.bench.work import MOST_ERROR
from gossamer.device.base import Device
from gossamer.errors import UnsupportedError
from gossamer.measure import Timing
from gossamer.model import zoo
from gossamer.model.infer.resolve import resolve
from gossamer_bench.ladder import network
from gossamer_bench.ladder.network import BlockSizes, PublishedNetwork
from gossamer_bench.ladder.rungs import Rung
from tests.fixtures import is_slow, working_devices
from tests.tolerances import normalised_error, tolerance

X = np.random.default_rng(3).standard_normal((2, 3, 7, 6)).astype(np.float32)
EXPECTED = reference(every_layer(), X)


@pytest.fixture
def timings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of block sizes that were compared for each kernel; the second is the fastest."""
    counts: list[int] = []

    def measured(device: Device, works: list[Callable[[Any], None]], **options: Any
                 ) -> list[Timing]:
        counts.append(len(works))
        return [Timing(float(index != 1), 0.0, 1.0, 1) for index in range(len(works))]

    monkeypatch.setattr(network, "measure", measured)
    return counts


def published(rung: Rung, dtype: str, device: Device, blocks: BlockSizes | None = None
              ) -> PublishedNetwork:
    return PublishedNetwork(resolve(every_layer(), len(X)), X, rung, dtype, device, blocks)


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_rung_computes_the_network(compiled_device: Device, dtype: str, timings: list[int],
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    most = MOST_ERROR["fp64"] if dtype == "float64" else tolerance("network")
    slow = is_slow(compiled_device)
    if slow:  # fewer work-items are without work
        monkeypatch.setattr(network, "_BLOCK", 32)
    # the kernels of the other two rungs are those of Rung.BLOCKS
    for rung in (Rung.PIXELS, Rung.VALUES, Rung.BLOCKS, Rung.POINTWISE) if slow else Rung:
        computed = published(rung, dtype, compiled_device)
        computed.run()
        if not slow:  # a second run finds the memory of the first
            computed.run()
        assert normalised_error(computed.output(), EXPECTED) < most, rung.label


def test_padding_passes_end_with_the_third_rung(compiled_device: Device,
                                                timings: list[int]) -> None:
    kernels = [published(rung, "float32", compiled_device).kernels for rung in Rung]
    # 6 convolutions, of which 4 are padded, a sum, a mean and two products
    assert kernels == [14, 14, 10, 10, 10, 10]


def test_memory_is_allocated_in_each_run_until_the_fourth_rung(
        monkeypatch: pytest.MonkeyPatch, timings: list[int]) -> None:
    device = next((device for device in working_devices().values() if device.compiles), None)
    if device is None:
        pytest.skip("no device compiles kernels here")
    sizes: list[int] = []
    empty = type(device).empty
    monkeypatch.setattr(type(device), "empty", lambda self, nbytes, *rest: sizes.append(nbytes)
                        or empty(self, nbytes, *rest))
    allocations = []
    for rung in Rung:
        computed = published(rung, "float32", device)
        sizes.clear()
        computed.run()
        allocations.append(len(sizes))
    # the outputs of 10 layers, and 4 padded inputs
    assert allocations == [14, 14, 10, 0, 0, 0]


def test_block_sizes_are_measured_once(compiled_device: Device, timings: list[int]) -> None:
    untuned = published(Rung.MEMORY, "float32", compiled_device)
    assert untuned.block_sizes == (256, 256) and not timings
    blocks: BlockSizes = {}
    tuned = published(Rung.BLOCKS, "float32", compiled_device, blocks)
    assert tuned.block_sizes == (64, 64) and len(timings) == len(blocks) == tuned.kernels
    most = compiled_device.limits.sure_work_group_size
    assert timings[0] == sum(size <= most for size in (32, 64, 128, 256, 512, 1024))
    # the two 1x1 convolutions have a kernel of their own, the other kernels are known
    published(Rung.POINTWISE, "float32", compiled_device, blocks)
    assert len(timings) == len(blocks) == tuned.kernels + 2
    published(Rung.POINTWISE, "float32", compiled_device, blocks)
    assert len(timings) == tuned.kernels + 2


def test_tensors_that_integers_cannot_count_are_refused(compiled_device: Device,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    # the stem's output, 6 images of 4x6 with a border of 2, is the largest tensor
    monkeypatch.setattr(network, "_LARGEST", 2 * 6 * 8 * 10 - 1)
    with pytest.raises(UnsupportedError, match=r"^every-layer.onnx: a tensor has 960 values, and a "
                                               r"rung of the ladder counts to 959; take a smaller"):
        published(Rung.BORDERS, "float32", compiled_device)


@pytest.mark.slow
def test_mobilenet_is_computed(timings: list[int]) -> None:
    device = working_devices().get("pocl") or working_devices().get("cuda")
    if device is None:
        pytest.skip("neither PoCL nor CUDA works here")
    graph = zoo.build("mobilenet_v2", seed=3)
    x = np.random.default_rng(2).standard_normal((1, 3, 224, 224)).astype(np.float32)
    computed = PublishedNetwork(resolve(graph, 1), x, Rung.MEMORY, "float32", device)
    computed.run()
    assert computed.kernels == 52 + 10 + 2
    assert normalised_error(computed.output(), reference(graph, x)) < tolerance("network")
