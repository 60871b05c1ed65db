"""The choice of BLAS threads on the host: for layers where nothing else is measured, and for
networks as a whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gossamer
from gossamer.device import blas
from gossamer.device.host import HostDevice
from gossamer.device.registry import find
from gossamer.measure import Timing
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph
from gossamer.ops.host_threads import THREADS
from gossamer.plan.choose import thread_choice
from gossamer.plan.choose.plan_times import EndToEnd
from gossamer.plan.plan import Plan
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.tuner import Tuner


@pytest.fixture(autouse=True)
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """BLAS with eight threads, as far as configs are concerned."""
    monkeypatch.setattr(blas, "threads", lambda: 8)


@pytest.fixture
def graph() -> Graph:
    """Two convolutions of the same shape, large enough for several threads."""
    builder = GraphBuilder("net")
    rng = np.random.default_rng(0)
    value = builder.input("x", (None, 64, 16, 16))
    for name in ("first", "second"):
        weight = builder.constant(name, rng.standard_normal((64, 64, 3, 3), np.float32) / 24)
        value = builder.conv2d(value, weight, pads=(1, 1, 1, 1))
    builder.output(value, (None, 64, 16, 16))
    return builder.finish()


def threads(plan: Plan) -> list[Any]:
    return [dict(step.variant.config).get(THREADS) for step in plan.program(1).steps]


@pytest.fixture
def timed_layers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Returns a function that sets the time with all threads, as a share of that with one."""
    order: list[Any] = []

    def make(share: float) -> list[Any]:
        def work(step: Any, variant: Any, examples: Any) -> Callable[[], float]:
            count = dict(variant.config)[THREADS]

            def execute() -> float:
                order.append(count)
                return 100.0 if count == 1 else 100.0 * share

            return execute

        monkeypatch.setattr(thread_choice, "_work", work)
        return order

    return make


def timed_whole(monkeypatch: pytest.MonkeyPatch, *medians: float) -> None:
    """Sets the times of the whole network: with the layers' threads, and with one."""
    monkeypatch.setattr(thread_choice, "interleave", lambda tasks, **_: [
        Timing(median, median, median, 3) for median in medians])


@pytest.mark.parametrize(("share", "expected"), [(0.5, "all"), (0.9, 1), (40.0, 1)])
def test_without_an_effort_layers_are_timed_in_turn(
        graph: Graph, timed_layers: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch,
        share: float, expected: Any) -> None:
    order = timed_layers(share)
    timed_whole(monkeypatch, 50.0, 100.0)
    plan = gossamer.compile(graph, "host")
    assert threads(plan) == [expected] * 2
    # both layers have the same problem, which is timed once: after a first execution, in turn
    assert order == [1, "all"] * 4
    assert {row["config"] for row in plan.report().rows} == {f"threads={expected}"}


@pytest.mark.parametrize(("whole", "expected"), [((94.0, 100.0), "all"), ((96.0, 100.0), 1)])
def test_the_whole_network_has_to_gain(
        graph: Graph, timed_layers: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch,
        whole: tuple[float, float], expected: Any) -> None:
    timed_layers(0.5)
    timed_whole(monkeypatch, *whole)
    assert threads(gossamer.compile(graph, "host")) == [expected] * 2


def test_contention_leaves_one_thread(
        graph: Graph, timed_layers: Callable[..., list[Any]],
        monkeypatch: pytest.MonkeyPatch) -> None:
    timed_layers(0.5)
    waits = iter(range(0, 10**6, 1000))
    monkeypatch.setattr("gossamer.measure.waited_s", lambda: float(next(waits)))
    assert threads(gossamer.compile(graph, "host")) == [1, 1]


def test_layers_that_do_not_fit_into_memory_keep_one_thread(
        graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(thread_choice, "_work", full)
    assert threads(gossamer.compile(graph, "host")) == [1, 1]


def test_threads_are_saved_with_the_plan(
        graph: Graph, timed_layers: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path) -> None:
    timed_layers(0.5)
    timed_whole(monkeypatch, 50.0, 100.0)
    plan = gossamer.compile(graph, "host")
    x = np.random.default_rng(1).standard_normal((1, 64, 16, 16), np.float32)
    y = plan(x)
    plan.save(tmp_path / "a.plan")
    monkeypatch.setattr(thread_choice, "_work", None)
    loaded = Plan.load(tmp_path / "a.plan")
    assert threads(loaded) == ["all"] * 2
    np.testing.assert_array_equal(loaded(x), y)


class _EightThreads(HostDevice):
    """The host on which all threads take half the time of one."""

    share = 0.5

    def time(self, work: Callable[[Any], None], stream: Any = None) -> float:
        limits: list[int] = []
        limited = blas.limited

        def recorded(most: int) -> Any:
            limits.append(most)
            return limited(most)

        blas.limited = recorded
        try:
            work(stream)
        finally:
            blas.limited = limited
        return 100.0 if limits else 100.0 * self.share


@pytest.mark.parametrize(("whole", "expected"), [((90.0, 100.0), "all"), ((99.0, 100.0), 1)])
def test_measured_choices_are_compared_as_a_whole(
        graph: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
        whole: tuple[float, float], expected: Any) -> None:
    device = _EightThreads()
    monkeypatch.setattr(thread_choice, "end_to_end", lambda *_: [
        EndToEnd(Timing(median, median, median, 5)) for median in whole])
    plan = Plan(graph, device, tuner=Tuner(device, "max", cache=TuningCache(device, tmp_path)))
    assert threads(plan) == [expected] * 2
    candidates = {candidate["config"]: candidate["reason"]
                  for candidate in plan.report().rows[0]["candidates"]}
    assert candidates[f"threads={expected}"] == "taken"
    if expected == 1:
        assert candidates["threads=all"] == (
            "the network as a whole is no faster with more than one thread")


def test_other_devices_are_left_alone(graph: Graph) -> None:
    program = gossamer.compile(graph, "host").program(1)
    device = type("Compiling", (HostDevice,), {"compiles": True})()
    assert thread_choice.with_threads(program, device) is program
    assert thread_choice.settled("net", program, device, None) == (program, None)
    assert find("host").compiles is False
