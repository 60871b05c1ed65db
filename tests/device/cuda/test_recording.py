"""Tests of recording with a driver that writes down what graphs are made of."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

recording = pytest.importorskip("gossamer.device.cuda.graph", exc_type=ImportError)


class Graph:
    """A graph as its nodes in order, each a child graph or an event, with those it waits for."""

    def __init__(self, work: str = "") -> None:
        self.work = work
        self.nodes: list[tuple[Any, list[int]]] = []

    def add(self, node: Any, before: Any, count: int) -> int:
        assert len(before or []) == count
        self.nodes.append((node, list(before or [])))
        return len(self.nodes) - 1

    def executed(self) -> list[Any]:
        """Returns works and events in their order, if each node waits for the one before it."""
        if self.work:
            return [self.work]
        assert [before for _, before in self.nodes] == [
            [index - 1] if index else [] for index in range(len(self.nodes))]
        return [step for node, _ in self.nodes
                for step in (node.executed() if isinstance(node, Graph) else [node])]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the driver's calls; the driver makes graphs of the class Graph."""
    names: list[str] = []
    success = recording.driver.CUresult.CUDA_SUCCESS
    functions = {
        "cuGraphCreate": lambda flags: Graph(),
        "cuStreamEndCapture": lambda stream: Graph("work"),
        "cuGraphAddChildGraphNode": lambda graph, before, count, child: graph.add(
            child, before, count),
        "cuGraphAddEventRecordNode": lambda graph, before, count, event: graph.add(
            event, before, count),
        "cuStreamBeginCapture": None, "cuGraphDestroy": None}
    for name, function in functions.items():
        def call(*arguments: Any, name: str = name, function: Any = function) -> tuple[Any, ...]:
            names.append(name)
            return (success,) if function is None else (success, function(*arguments))
        monkeypatch.setattr(recording.driver, name, call)
    monkeypatch.setattr(recording, "CudaStream", lambda device: SimpleNamespace(handle=7))
    monkeypatch.setattr(recording, "CudaGraph",
                        lambda device, graph, used, stream: (graph.executed(), used, stream))
    return names


@pytest.fixture
def recorder(calls: list[str]) -> Any:
    device = SimpleNamespace(name="cuda:0", current=nullcontext, create_stream=None,
                             checked=lambda what, result: recording.check(result))
    return recording.Recorder(device)


@pytest.mark.parametrize("repeats", [1, 2, 3, 4, 17, 100, 1000])
@pytest.mark.parametrize("events", [(), ("first", "last")])
def test_executions_follow_one_another(recorder: Any, calls: list[str], repeats: int,
                                       events: tuple[str, ...]) -> None:
    executed, _, stream = recorder.graph(lambda stream: None, "a stream", repeats, events)
    assert executed == [*events[:1], *["work"] * repeats, *events[1:]]
    assert stream == "a stream"
    assert calls.count("cuGraphAddChildGraphNode") <= 3 * math.isqrt(repeats) + 2
    # the graph itself and, from four executions on, one for a group of them
    assert calls.count("cuGraphCreate") <= 1 + (repeats > 3)
    made = calls.count("cuGraphCreate") + calls.count("cuStreamEndCapture")
    assert calls.count("cuGraphDestroy") == made


def test_a_graph_keeps_what_its_own_thread_uses(recorder: Any) -> None:
    def work(stream: Any) -> None:
        recorder.keep("first", "second")
        with ThreadPoolExecutor(1) as pool:
            pool.submit(recorder.keep, "of another thread").result()

    recorder.keep("before")
    assert recorder.graph(work, None, 1)[1] == ["first", "second"]
    recorder.keep("behind")


def test_a_capture_that_fails_leaves_nothing(recorder: Any, calls: list[str]) -> None:
    def work(stream: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recorder.graph(work, None, 1)
    assert calls == ["cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphDestroy"]


class Captured(Graph):
    """A graph of several executions that were captured one after another."""

    def __init__(self, count: int) -> None:
        super().__init__("work")
        self.count = count

    def executed(self) -> list[Any]:
        return ["work"] * self.count


@pytest.mark.parametrize("repeats", [1, 2, 9, 10, 25, 100])
@pytest.mark.parametrize(("as_in_plan", "early"), [(True, True), (True, False), (False, True)])
def test_executions_begin_early_as_in_a_plan(
        recorder: Any, calls: list[str], monkeypatch: pytest.MonkeyPatch, repeats: int,
        as_in_plan: bool, early: bool) -> None:
    captured: list[int] = []
    success = recording.driver.CUresult.CUDA_SUCCESS

    def begin(stream: Any, mode: Any) -> tuple[Any, ...]:
        captured.append(0)
        return (success,)

    def work(stream: Any) -> None:
        captured[-1] += 1
        if early:
            recorder.note_early_begin()

    monkeypatch.setattr(recording.driver, "cuStreamBeginCapture", begin)
    monkeypatch.setattr(recording.driver, "cuStreamEndCapture",
                        lambda stream: (success, Captured(captured[-1])))
    executed, _, _ = recorder.graph(work, None, repeats, ("first", "last"), as_in_plan=as_in_plan)
    assert executed == ["first", *["work"] * repeats, "last"]
    together = [1, min(repeats, 10)] if as_in_plan and early and repeats > 1 else [1]
    assert captured == together
    made = calls.count("cuGraphCreate") + len(captured)
    assert calls.count("cuGraphDestroy") == made


def test_a_graph_copies_to_its_latest_targets(fake: Any, made: Any) -> None:
    sources = [made.empty(512, "a test").view(256, 8) for _ in range(2)]
    graph = made.capture_copying(lambda stream: None, [(source, 8) for source in sources])
    codes = recording.driver.CUresult
    for turn, refused in enumerate(([], [], [codes(1)], [codes(0), codes(1)])):
        fake.clear()
        fake.failing = {"cuGraphExecMemcpyNodeSetParams": refused}
        graph.copy_to(targets := (64 + turn, 96 + turn))
        assert graph.addresses == targets and [
            (int(node.srcDevice), int(node.dstDevice), node.WidthInBytes)
            for _, node in graph._nodes] == [
                (source.address, to, 8) for source, to in zip(sources, targets, strict=True)]
        # where the driver refuses a new target, the graph is instantiated again
        assert sum("GraphInstantiate" in call for call in fake.calls) == (turn != 1)
