"""The algorithm that is chosen where nothing is measured, and the problem that is measured."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from gossamer.device.base import Device
from gossamer.device.host import HostDevice
from gossamer.device.registry import find
from gossamer.errors import GossamerWarning, InputError
from gossamer.ops.backprop import host, host_updates
from gossamer.ops.backprop.host import NumpyBackprop
from gossamer.ops.backprop.problem import DENSITIES, BackpropProblem
from gossamer.ops.registry import OPS
from gossamer.plan.program import Layer
from gossamer.plan.store.keys import problem_key
from gossamer.plan.tune.tuner import Tuner
from gossamer.train import MLP
from gossamer.train.loop.algorithm_choice import choose
from tests.ops.recording import RecordingDevice

PUBLISHED = (1024, 32, 10)


@pytest.mark.parametrize(("sizes", "settings", "expected"), [
    (PUBLISHED, {}, ("blocked", "pipeline_mma")),
    (PUBLISHED, {"networks": 132}, ("blocked", "pipeline_mma")),
    (PUBLISHED, {"velocity": True}, ("persistent", "registers")),
    (PUBLISHED, {"batch": 16}, ("batched", None)),
    ((784, 32, 16, 10), {}, ("persistent", "sparse")),
    ((784, 128, 10), {}, ("blocked", "launches")),
    ((784, 300, 100, 10), {}, ("blocked", "launches")),
    ((784, 300, 100, 10), {"batch": 16}, ("batched", None)),
    ((784, 128, 10), {"velocity": True}, ("batched", None)),
    ((784, 100, 10), {"adam": True, "batch": 200}, ("batched", None)),
    ((784, 2000, 10), {"adam": True, "batch": 200}, ("per_step", None))])
def test_on_an_nvidia_gpu(sizes: tuple[int, ...], settings: dict[str, Any],
                          expected: tuple[str, str | None]) -> None:
    assert _chosen(RecordingDevice(), sizes, settings) == expected


def test_tf32_where_it_is_allowed() -> None:
    problem = BackpropProblem((784, 100, 10), 6000, 5990, batch=200, adam=True)
    choice = choose(problem, RecordingDevice(), None, None, "tf32")
    assert choice.variant(problem).precision == "tf32"
    assert choice.variant(problem.of_samples(3)).precision == "fp32"
    assert choose(problem, RecordingDevice(), None, None).variant(problem).precision == "fp32"


@pytest.mark.parametrize(("trained_on", "batch", "name"), [
    (RecordingDevice(), 1, "batched"), (find("host"), 200, "numpy")])
def test_a_warning_says_that_tf32_is_not_used(trained_on: Device, batch: int, name: str) -> None:
    problem = BackpropProblem((784, 100, 10), 6000, 6000, batch=batch, adam=True)
    with pytest.warns(GossamerWarning, match=f"'tf32' is not used: {name} on .* in fp32"):
        choice = choose(problem, trained_on, None, None, "tf32")
    assert choice.variant(problem).precision == "fp32"


@pytest.mark.parametrize("precision", ["fp16", "TF32", None])
def test_other_precisions_are_refused(precision: Any) -> None:
    x, y = np.eye(4), np.arange(4)
    with pytest.raises(InputError, match=f"precision {precision!r}: expected .*fp32.*tf32"):
        MLP(device="host", precision=precision).fit(x, y)


@pytest.mark.parametrize(("sizes", "settings", "expected"), [
    (PUBLISHED, {}, ("blocked", "pipeline")),
    (PUBLISHED, {"velocity": True}, ("persistent", "local")),
    ((784, 128, 10), {}, ("persistent", "sparse")),
    ((784, 300, 100, 10), {}, ("blocked", "launches"))])
def test_on_a_processor_through_opencl(sizes: tuple[int, ...], settings: dict[str, Any],
                                       expected: tuple[str, str | None]) -> None:
    assert _chosen(_OpenClProcessor(), sizes, settings) == expected


def test_a_processor_that_trains_slowly_through_opencl_is_told_of() -> None:
    device = _OpenClProcessor()
    with pytest.warns(GossamerWarning, match="is a processor, on which persistent trains many "
                                             "times slower than NumPy: omit the device"):
        choose(BackpropProblem((784, 128, 10), 100, 100), device, None, None)
    with warnings.catch_warnings(action="error"):
        choose(BackpropProblem(PUBLISHED, 100, 100), device, None, None)
        choose(BackpropProblem((784, 128, 10), 100, 100), device, None, "persistent")
        choose(BackpropProblem((784, 128, 10), 100, 100), RecordingDevice(), None, None)


class _OpenClProcessor(RecordingDevice):
    """A processor that OpenCL computes on."""

    on_processors = True

    def __init__(self) -> None:
        super().__init__()
        self.limits = replace(self.limits, subgroup_size=1, shared_bytes=2**20,
                              shared_bytes_opt_in=2**20, mma=False)


def _chosen(device: Device, sizes: tuple[int, ...],
           settings: dict[str, Any]) -> tuple[str, str | None]:
    """Return the name of the chosen algorithm, and its form."""
    problem = BackpropProblem(sizes, 60_000, 60_000, **settings)
    choice = choose(problem, device, None, None)
    config = dict(choice.variant(problem.of_samples(choice.samples)).config)
    form = config.get("form", config.get("weights"))
    return choice.algorithm.name, None if form is None else str(form)


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("decay", [False, True])
def test_examples_are_like_the_data(density: float, binary: bool, decay: bool) -> None:
    problem = BackpropProblem((1000, 3, 2), 400, 8)
    rng = np.random.default_rng(1)
    for share in (density * 1.2, density * 0.85):
        x = (rng.random((400, 1000)) < share) * (1.0 if binary else rng.random((400, 1000)))
        like = problem.like(x, decay)
        assert (like.density, like.binary, like.decay) == (density, binary, decay)
        example, *_, settings, _ = like.example_inputs(rng)
        assert abs(np.count_nonzero(example) / example.size - density) < 0.01
        assert (set(np.unique(example)) <= {0, 1}) == binary
        assert settings[0, 2] > 0 if decay else settings[0, 2] == 0


def test_data_that_differ_have_measurements_of_their_own() -> None:
    problem = BackpropProblem((9, 3, 2), 400, 8)
    keys = {problem_key(replace(problem, density=density, binary=binary, decay=decay))
            for density in DENSITIES for binary in (False, True) for decay in (False, True)}
    assert len(keys) == 4 * len(DENSITIES)


def test_examples_are_as_uneven_as_pictures() -> None:
    """In MNIST 150 of 1024 inputs are 1 in a picture, and 362 in at least one of eight pictures."""
    problem = BackpropProblem(PUBLISHED, 800, 8, density=150 / 1024, binary=True)
    x = problem.example_inputs(np.random.default_rng(0))[0]
    assert abs(x.sum(1).mean() - 150) < 5
    assert abs(x.reshape(-1, 8, 1024).any(1).sum(1).mean() - 362) < 15


def test_empty_data_and_zeros_have_a_density() -> None:
    problem = BackpropProblem((4, 2), 0, 0)
    for x in (np.empty((0, 4)), np.zeros((3, 4))):
        assert problem.like(x, True).density == 0.1
    assert problem.like(np.ones((3, 4)), True).density == 1.0


class ByRows(NumpyBackprop):
    """Takes the same time whatever the inputs are."""

    name = "rows"
    density = 0.3
    seen: ClassVar[set[tuple[int, float, bool]]] = set()
    took: ClassVar[list[float]] = []

    def compute(self, problem: BackpropProblem, *arguments: Any) -> list[np.ndarray]:
        x, settings = arguments[0][0], arguments[0][3]
        share = np.count_nonzero(x) / x.size
        self.seen.add((problem.samples, round(share, 1), bool(settings[0, 2])))
        self.took.append(self.density or share)
        return super().compute(problem, *arguments)


class ByLists(ByRows):
    """Skips inputs that are zero."""

    name = "lists"
    density = 0.0


def test_sparse_data_are_measured_as_such(monkeypatch: pytest.MonkeyPatch,
                                          own_cache: Path) -> None:
    def timed(device: HostDevice, work: Callable[[Any], None]) -> float:
        work(None)
        return 1e3 * ByRows.took[-1]

    monkeypatch.setattr(HostDevice, "time", timed)
    monkeypatch.setitem(OPS, "backprop", replace(OPS["backprop"],
                                                 algorithms=(ByRows(), ByLists())))
    rng = np.random.default_rng(0)
    algorithms = {}
    for share in (0.1, 1.0):
        x = (rng.random((700, 20)) < share).astype(np.float32)
        mlp = MLP.published((20, 3, 2), device="host", effort="quick", epochs=1)
        algorithms[share] = mlp.fit(x, rng.integers(0, 2, 700)).algorithm_
    assert algorithms == {0.1: "lists", 1.0: "rows"}
    # two epochs of all samples, and the measurements before them
    assert ByRows.seen == {(samples, share, False) for samples in (512, 700)
                           for share in (0.1, 1.0)}


@pytest.mark.parametrize(("samples", "networks", "batch", "measured"), [
    (60_000, 1, 1, 2048), (2047, 1, 1, 1024), (10, 1, 1, 256), (60_000, 32, 1, 1024),
    (60_000, 1000, 1, 256), (60_000, 1, 100, 2000), (600, 1, 600, 600)])
def test_epochs_of_many_lengths_share_a_measurement(
        samples: int, networks: int, batch: int, measured: int,
        monkeypatch: pytest.MonkeyPatch) -> None:
    class Measured(Exception):
        pass

    def measure(tuner: Tuner, layer: Layer, *arguments: Any) -> None:
        assert isinstance(layer.problem, BackpropProblem)
        raise Measured(layer.problem.rows, layer.problem.samples)

    monkeypatch.setattr(Tuner, "measure", measure)
    problem = BackpropProblem((20, 3, 2), samples, samples, batch=batch, networks=networks)
    with pytest.raises(Measured) as caught:
        choose(problem, find("host"), "quick", None)
    assert caught.value.args == (measured, measured)


Blobs = tuple[np.ndarray, np.ndarray]


def _blas_threads() -> list[int]:
    # OpenCV has a BLAS of its own, which NumPy does not call
    return [pool["num_threads"] for pool in threadpool_info()
            if pool["user_api"] == "blas" and "opencv" not in pool["filepath"]]


@pytest.fixture
def most() -> list[int]:
    """Numbers of BLAS threads before any training."""
    threads = _blas_threads()
    if set(threads) <= {1}:
        pytest.skip("BLAS has one thread here")
    return threads


def _train(blobs: Blobs, batch: int = 1) -> None:
    MLP.published((4, 5, 3), epochs=1, batch=batch, device="host").fit(*blobs)


@pytest.mark.parametrize("batch", [1, 8])
def test_small_products_take_one_thread(blobs: Blobs, most: list[int], batch: int,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []

    def recorded(work: Any) -> Any:
        def function(*arguments: Any) -> Any:
            seen.append(_blas_threads())
            return work(*arguments)

        return function

    for name in ("in_batches", "one_by_one"):
        monkeypatch.setattr(host_updates, name, recorded(getattr(host_updates, name)))
    _train(blobs, batch)
    assert seen == [[1] * len(most)]
    assert _blas_threads() == most
    monkeypatch.setattr(host, "_SMALL", batch * (4 * 5 + 5 * 3) - 1)
    _train(blobs, batch)
    assert seen[1:] == [most]


def test_threads_are_put_back_where_several_train(blobs: Blobs, most: list[int],
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """The count of threads is restored even where a second training begins while the first goes on
    and ends after it."""
    online = host_updates.one_by_one
    first_began, second_began, first_ended = (threading.Event() for _ in range(3))

    def in_turns(*arguments: Any) -> list[np.ndarray]:
        if threading.current_thread().name == "first":
            first_began.set()
            second_began.wait(0.5)
        else:
            second_began.set()
            assert first_ended.wait(60)
        return online(*arguments)

    def first() -> None:
        _train(blobs)
        first_ended.set()

    monkeypatch.setattr(host_updates, "one_by_one", in_turns)
    threads = [threading.Thread(target=first, name="first"),
               threading.Thread(target=_train, args=(blobs,))]
    threads[0].start()
    assert first_began.wait(60)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert _blas_threads() == most
