"""Records of the peers in C and of CLBlast, whose libraries are replaced by what notes its
arguments."""

from __future__ import annotations

import ctypes
import itertools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.bench.contender import PeerNetwork
from gossamer.bench.peers import clblast, inference, training_peers
from gossamer.bench.suites.training import TrainingCase, make_epoch
from gossamer.device.host import HostDevice
from gossamer.model.builder import GraphBuilder
from tests.recorded import Recorded, as_text, digest
from tests.recorded.outcomes import outcome


def test_peers_in_c(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    class Networks:
        def __init__(self, sizes: Any, start: np.ndarray, lessons: Any, threads: int = 1,
                     together: bool | None = None) -> None:
            begun.append(f"{type(self).__name__} {sizes} {threads} {together} {lessons.listed}")
            self.threads, self.start = threads, start

        def train(self, samples: int) -> None:
            begun.append(f"train {samples}")

        def parameters(self) -> np.ndarray:
            return self.start + self.threads

    class Plain(Networks):
        pass

    class Lessons:
        def __init__(self, x: Any, targets: Any, rate: float, listed: bool) -> None:
            self.listed = listed

    class Host(HostDevice):
        def __init__(self, units: int) -> None:
            super().__init__()
            self.limits = replace(self.limits, compute_units=units)
            self.times = itertools.cycle([9.0, 7.0, 8.0, 5.0, 6.0, 5.5, 4.0, 4.5, 7.5, 3.0, 30.0])

        def time(self, work: Any, stream: Any = None) -> float:
            work(stream)
            return next(self.times)

    monkeypatch.setattr(training_peers, "CNetworks", Networks)
    monkeypatch.setattr(training_peers, "PlainNetworks", Plain)
    monkeypatch.setattr(training_peers, "Lessons", Lessons)
    monkeypatch.setattr(training_peers.backprop_c, "library", lambda: None)
    monkeypatch.setattr(training_peers.backprop_c, "compiler", lambda: "cc")
    monkeypatch.setattr(training_peers.backprop_c, "OPTIONS", ("-O3", "-march=this"))
    found = {f"{most} threads": str(training_peers._thread_counts(most)) for most in range(1, 18)}
    names = [name for name in training_peers.TRAINING_PEERS if name.startswith("c-")]
    for name, networks, units in itertools.product(names, (1, 2, 3), (1, 2, 3, 8)):
        monkeypatch.setattr(training_peers, "find", lambda device, units=units: Host(units))
        epoch = make_epoch(TrainingCase("", (4, 3, 2), 7, networks))
        begun.clear()

        def used(ways: Any) -> str:
            (way,) = ways
            ready = way.make()
            return as_text([way.label, ready.contender, ready.layout, ready.config, ready.runs,
                            ready.output(1)])

        text = outcome(training_peers.TRAINING_PEERS[name], epoch, Host(units), text=used)
        found[f"{name} {networks} {units}"] = f"{text} {digest(begun)} {len(begun)} {begun[:1]}"
    recorded("peers_in_c", found)


class Buffer(SimpleNamespace):
    """A buffer with a handle."""


class OpenCL(HostDevice):
    """A device whose buffers have numbers, and which notes what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers: list[Any] = []

    def queue(self, stream: Any) -> Any:
        return SimpleNamespace(int_ptr=70 + (stream or 0),
                               device=SimpleNamespace(int_ptr=5, name="Chip "))

    def upload(self, array: np.ndarray, purpose: str) -> Any:
        return self._add(array.copy())

    def empty(self, nbytes: int, purpose: str, stream: Any = None) -> Any:
        return self._add(np.zeros(nbytes // 4, np.float32))

    def _add(self, array: np.ndarray) -> Any:
        self.buffers.append(Buffer(handle=SimpleNamespace(int_ptr=100 + len(self.buffers)),
                                   array=array))
        return self.buffers[-1]

    def read(self, buffer: Any, array: np.ndarray, *_: Any) -> None:
        array[...] = buffer.array.reshape(array.shape)


def _value(argument: Any) -> Any:
    if isinstance(argument, ctypes.Array):
        return list(argument)
    return getattr(argument, "value", argument if isinstance(argument, int | bytes) else None)


def product(trans_b: bool, bias: bool, relu: bool = False) -> PeerNetwork:
    build = GraphBuilder("product")
    weight = np.arange(15, dtype=np.float32).reshape((5, 3) if trans_b else (3, 5))
    names = [build.constant("w", weight)]
    names += [build.constant("b", np.ones(5, np.float32))] * bias
    y = build.gemm(build.input("x", (None, 3)), *names, trans_b=trans_b)
    build.output(build.apply("relu", y) if relu else y, (None, 5))
    return PeerNetwork("product", build.finish(), is_layer=True)


def test_clblast(recorded: Recorded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    called: list[Any] = []

    def function(name: str) -> Any:
        def call(*arguments: Any) -> int:
            called.append((name, [_value(argument) for argument in arguments]))
            return status[0]

        return call

    status = [0]
    library = SimpleNamespace(CLBlastSgemm=function("product"),
                              CLBlastOverrideParameters=function("override"))
    monkeypatch.setattr(clblast, "_library", lambda: library)
    monkeypatch.setattr(clblast, "runs_opencl", lambda device: isinstance(device, OpenCL))
    monkeypatch.chdir(tmp_path)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = {}

    def used(ways: Any) -> str:
        (way,) = ways
        ready = way.make()
        outcomes = [outcome(ready.work, stream) for stream in (None, 4)]
        buffers = [buffer.array.tolist() for buffer in ready.device.buffers]
        return as_text([way.label, ready.config, ready.layout, outcomes, buffers,
                        list(ready.output(1).shape), list(ready.output(2).shape)])

    def note(case: str, network: PeerNetwork, device: HostDevice, *precisions: str) -> None:
        clblast._tuned.cache_clear()
        called.clear()
        text = outcome(clblast.clblast, network, x, device, precisions, text=used,
                       hidden=tmp_path)
        found[f"{case}, calls"] = str(called)
        found[case] = text

    for trans_b, bias, relu in itertools.product((False, True), repeat=3):
        note(f"{trans_b} {bias} {relu}", product(trans_b, bias, relu), OpenCL(), "fp32")
    note("on the host", product(True, False), HostDevice(), "fp32")
    note("fp16", product(True, False), OpenCL(), "fp16")
    for number, (device, time) in enumerate((("Chip", 2.0), ("Chip ", 1.5), ("other", 1.0))):
        (tmp_path / f"clblast_xgemm_{number}_32.json").write_text(json.dumps({
            "device": device, "best_kernel": "Xgemm", "best_time": time,
            "best_parameters": f"KWG={16 * number} PRECISION=32 MWG=8"}))
        note(f"{number + 1} results", product(True, False), OpenCL(), "fp32")
    status[0] = -3
    note("refused", product(True, False), OpenCL(), "fp32")
    (tmp_path / "clblast_xgemm_0_32.json").unlink()
    (tmp_path / "clblast_xgemm_1_32.json").write_text("{}")
    note("no result", product(True, False), OpenCL(), "fp32")
    (tmp_path / "clblast_xgemm_1_32.json").unlink()
    note("fails", product(True, False), OpenCL(), "fp32")
    clblast._tuned.cache_clear()
    recorded("clblast", found)


def test_what_is_released(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    libraries = {
        "gossamer.bench.peers.torch_peers": SimpleNamespace(
            forget=lambda: told.append("switches and modules")),
        "jax": SimpleNamespace(clear_caches=lambda: told.append("functions")),
        "torch": SimpleNamespace(cuda=SimpleNamespace(empty_cache=lambda: told.append("memory")))}
    found = {}
    for present in itertools.product((False, True), repeat=len(libraries)):
        known = {name: library for (name, library), there in zip(
            libraries.items(), present, strict=True) if there}
        told.clear()
        monkeypatch.setattr(inference, "sys", SimpleNamespace(modules=known))
        found[str(list(known))] = f"{outcome(inference.release)} {told}"
    recorded("released", found)
