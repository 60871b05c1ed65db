"""Cases of calls: what takes part, and what is said of contenders that are wrong or absent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.bench import call_contest, calls
from gossamer.bench.call_contest import CallCase
from gossamer.bench.call_times import Load
from gossamer.bench.calls import BOUND, latency_case
from gossamer.bench.rows import Stamp
from gossamer.bench.work import OWN, TENSORS, AbsentError, CalledContender, PeerNetwork
from gossamer.device.registry import find
from gossamer.errors import DeviceError


def test_a_batch_after_another_is_called_as_often_as_there_are_batches() -> None:
    called: list[int] = []
    single = CalledContender(OWN, find("host"), lambda: lambda: called.append(1), lambda y: y,
                             "row", "")
    repeated = calls._repeated(single, 3, 2)
    repeated.new_call()()
    assert len(called) == repeated.runs == 3


@pytest.mark.parametrize("torch", [False, True])
@pytest.mark.parametrize("cuda", [False, True])
def test_tensors_need_an_nvidia_gpu_and_torch(monkeypatch: pytest.MonkeyPatch, cuda: bool,
                                              torch: bool) -> None:
    class NetworkAskedError(Exception):
        """The network was made, so that nothing is missing."""

    def make(batch: int) -> PeerNetwork:
        raise NetworkAskedError

    setting: Any = SimpleNamespace(device=SimpleNamespace(name="cuda:7", runs_cuda_libraries=cuda))
    monkeypatch.setattr(calls, "find_spec", lambda name: object() if torch else None)
    with pytest.raises(NetworkAskedError if cuda and torch else AbsentError, match=(
            "" if cuda and torch else "torch is not installed: pip install torch" if cuda
            else "cuda:7 holds no tensors of torch")):
        latency_case(make, 1, TENSORS, Load(), setting)


def _case(called: dict[str, Any]) -> CallCase:
    return CallCase("calls", "tiny", 1, 1, 1, 1.0, np.ones((1, 2)), called=called,
                    load=Load(seconds=0.01))


def _contender(name: str, value: float) -> Any:
    return lambda: CalledContender(name, find("host"), lambda: lambda: np.full((1, 2), value),
                                   lambda y: y, "row", "")


def _absent() -> CalledContender:
    raise AbsentError("not installed")


def test_wrong_and_absent_peers_are_listed() -> None:
    stamp = Stamp.of(find("host"), "a test")
    result = call_contest.run(_case({OWN: _contender(OWN, 1), "wrong": _contender("wrong", 2),
                                     "away": _absent}), stamp)
    assert [row.contender for row in result.rows] == [OWN]
    assert result.absent == {"away": "not installed"}
    assert "the result is wrong" in result.failed["wrong"]


def test_an_error_of_gossamer_ends_the_case() -> None:
    def failing() -> CalledContender:
        raise DeviceError("a kernel failed")

    stamp = Stamp.of(find("host"), "a test")
    with pytest.raises(DeviceError, match="a kernel failed"):
        call_contest.run(_case({BOUND: failing}), stamp)
    with pytest.raises(RuntimeError, match="gossamer failed at tiny: its error is"):
        call_contest.run(_case({OWN: _contender(OWN, 2)}), stamp)
