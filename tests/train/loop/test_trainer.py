"""Epochs in pieces and as graphs, and the choice of the algorithm that trains."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from gossamer.device.base import Buffer, Device
from gossamer.device.host import HostDevice
from gossamer.device.registry import find
from gossamer.errors import GossamerWarning, InputError
from gossamer.ops.algorithm import State
from gossamer.ops.backprop.host import NumpyBackprop
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.launch import Launch
from gossamer.ops.registry import OPS
from gossamer.plan.store.database import read
from gossamer.train import MLP
from gossamer.train.loop.algorithm_choice import choose
from gossamer.train.sweep import sweep
from tests.plan.device_stand_ins import GraphDevice

Blobs = tuple[np.ndarray, np.ndarray]


class RecordingHost(HostDevice):
    """The host with graphs: a replay runs the recorded work again, with the same buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = replace(self.limits, graph=True)
        self.captures = self.replays = 0

    def capture(self, work: Callable[[Any], None], stream: Any = None,
                repeats: int = 1) -> Callable[..., None]:
        self.captures += 1

        def replay(stream: Any = None) -> None:
            self.replays += 1
            work(stream)

        return replay


class Bounded(NumpyBackprop):
    """Takes at most 50 samples per launch."""

    name = "bounded"
    launched: ClassVar[list[int]] = []

    def supports(self, problem: BackpropProblem, device: Device) -> str | None:
        return "more than 50 samples" if problem.samples > 50 else None

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        self.launched.append(state.problem.samples)
        super().launch(state, inputs, outputs, workspace, stream)


class OneLaunch(NumpyBackprop):
    """Pretends to be a single kernel."""

    name = "one_launch"

    def prepare(self, *arguments: Any) -> State:
        state = super().prepare(*arguments)
        state.launches = [Launch(None, (1,), (1,), ())]
        return state


class Slow(NumpyBackprop):
    """Counts its calls, by which a simulated clock says that they take long."""

    name = "slow"
    calls: ClassVar[int] = 0

    def compute(self, *arguments: Any) -> list[np.ndarray]:
        Slow.calls += 1
        return super().compute(*arguments)


class Wrong(NumpyBackprop):
    name = "wrong"

    def compute(self, *arguments: Any) -> list[np.ndarray]:
        parameters, losses = super().compute(*arguments)
        return [parameters * 1.001, losses]


def _use(monkeypatch: pytest.MonkeyPatch, *algorithms: NumpyBackprop) -> None:
    monkeypatch.setitem(OPS, "backprop", replace(OPS["backprop"], algorithms=algorithms))


def _trained(device: Device, blobs: Blobs, **settings: Any) -> MLP:
    return MLP.published((4, 5, 3), **{"epochs": 4, "momentum": 0.5, "device": device,
                                       "shuffle": True,
                             **settings}).fit(*blobs)


def _use_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.train.loop.algorithm_choice._SHORTEST", 1)
    _use(monkeypatch, Bounded())


def _assert_same(first: MLP, second: MLP) -> None:
    for one, other in zip(first.coefs_, second.coefs_, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(first.loss_curve_, second.loss_curve_, rtol=1e-6)


@pytest.mark.parametrize("batch", [1, 7])
def test_an_epoch_is_cut_where_an_algorithm_is_bounded(blobs: Blobs, batch: int,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    uncut = _trained(find("host"), blobs, batch=batch)
    _use_bounded(monkeypatch)
    Bounded.launched.clear()
    cut = _trained(find("host"), blobs, batch=batch)
    assert cut.algorithm_ == "bounded"
    # all pieces have complete updates, except the last
    assert Bounded.launched == {1: [30] * 16, 7: [35, 35, 35, 15] * 4}[batch]
    _assert_same(cut, uncut)
    with pytest.raises(InputError, match=r"cannot train .*: more than 50 samples"):
        _trained(find("host"), blobs, batch=64, algorithm="bounded")


def test_what_launches_several_kernels_is_recorded(blobs: Blobs,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    device = RecordingHost()
    uncut = _trained(find("host"), blobs, batch=8)
    _use_bounded(monkeypatch)
    recorded = _trained(device, blobs, batch=8)
    # 32 + 32 + 32 + 24 samples: the first of each length is launched, all others run as a graph
    assert device.captures == 2
    assert device.replays == 4 * 4 - 2
    _assert_same(recorded, uncut)


def test_a_single_kernel_is_not_recorded(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    device = RecordingHost()
    uncut = _trained(find("host"), blobs)
    _use(monkeypatch, OneLaunch())
    _assert_same(_trained(device, blobs), uncut)
    assert device.captures == 0


def test_kernels_as_graphs(pocl: Any, blobs: Blobs) -> None:
    """Nothing happens during a capture that a capture forbids."""
    device = GraphDevice(pocl)
    first = blobs[0][:40], blobs[1][:40]
    recorded = _trained(device, first, algorithm="per_step")
    assert device.captures == 1
    _assert_same(recorded, _trained(pocl, first, algorithm="per_step"))


def test_cut_epochs_of_several_networks(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = blobs
    base = MLP.published((4, 5, 3), epochs=3, shuffle=True, device="host")
    uncut = sweep(base, {"seed": [0, 1, 2]}, x, labels)
    _use_bounded(monkeypatch)
    cut = sweep(base, {"seed": [0, 1, 2]}, x, labels, device=RecordingHost())
    for one, other in zip(uncut.networks, cut.networks, strict=True):
        _assert_same(one, other)


def test_data_go_to_the_device_once(blobs: Blobs) -> None:
    class Counting(HostDevice):
        def __init__(self) -> None:
            super().__init__()
            self.sent: list[int] = []
            self.fetched: list[int] = []

        def write(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
            self.sent.append(array.nbytes)
            super().write(buffer, array, stream)

        def read(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
            self.fetched.append(array.nbytes)
            super().read(buffer, array, stream)

    device = Counting()
    _trained(device, blobs, epochs=20, shuffle=False)
    parameters = 2 * 4 * (5 * 5 + 6 * 3)
    order = 512
    assert sorted(device.sent) == sorted([120 * 4 * 4, 120 * 3 * 4, *[parameters] * 3, order, 12])
    # read are the mean loss of each epoch, the samples' losses of the first, and the parameters
    assert sorted(device.fetched) == sorted([*[64] * 20, order, parameters])


def test_the_fastest_is_chosen(blobs: Blobs, monkeypatch: pytest.MonkeyPatch,
                              own_cache: Path) -> None:
    def timed(device: HostDevice, work: Callable[[Any], None], stream: Any = None) -> float:
        before = Slow.calls
        work(stream)
        return 1e3 + 2e4 * (Slow.calls - before)

    monkeypatch.setattr(HostDevice, "time", timed)
    _use(monkeypatch, Slow(), Wrong(), NumpyBackprop())
    host = find("host")
    assert _trained(host, blobs).algorithm_ == "slow"
    assert _trained(host, blobs, effort="quick").algorithm_ == "numpy"
    assert _trained(host, blobs, algorithm="wrong").algorithm_ == "wrong"
    files = list((own_cache / "tuning").glob("host-*.sqlite"))
    assert len(files) == 1
    before = read(files[0])
    assert '"slow"' in json.dumps(before)
    # training on other data for a longer epoch uses the same measurement
    MLP.published((4, 5, 3), momentum=0.5, device="host", effort="quick", epochs=1).fit(
        np.tile(blobs[0], (3, 1)), np.tile(blobs[1], 3))
    assert read(files[0]) == before


def test_measured_on_every_device(device: Device, own_cache: Path) -> None:
    problem = BackpropProblem((4, 5, 3), 120, 120, batch=40)
    choice = choose(problem, device, "quick", None)
    assert choice.device is device
    assert choice.config is not None
    assert choice.variant(problem).config == choice.config
    assert choice.algorithm.supports(problem, device) is None


def test_the_host_trains_instead_with_a_warning(compiled_device: Device, blobs: Blobs,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    _use(monkeypatch, NumpyBackprop())
    with pytest.warns(GossamerWarning, match=r"cannot train 4-5-3 sigmoid squared_error, 120 "
                                             r"samples \(numpy: runs on the host only\); the host "
                                             "trains it instead"):
        mlp = _trained(compiled_device, blobs)
    assert (mlp.device_, mlp.algorithm_) == ("host", "numpy")
    with pytest.raises(InputError, match="algorithm 'numpy' cannot train .* on "
                                         f"{compiled_device.name}: runs on the host only"):
        _trained(compiled_device, blobs, algorithm="numpy")
