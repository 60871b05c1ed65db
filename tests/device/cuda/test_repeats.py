"""Graphs that repeat another graph, by a driver that counts what is executed."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("cuda.bindings")

from gossamer.device.cuda import device as cuda_device


class Graph(list[Any]):
    """Nodes in the order in which they were added; a child graph is copied into its node."""


class CountingDriver:
    """The calls of the driver that make graphs. calls: how many nodes were added."""

    def __init__(self) -> None:
        self.calls = 0
        self.graphs: list[Graph] = []

    def cuGraphCreate(self, flags: int) -> tuple[int, Graph]:
        self.graphs.append(Graph())
        return 0, self.graphs[-1]

    def cuGraphDestroy(self, graph: Graph) -> tuple[int]:
        graph.clear()
        return (0,)

    def cuGraphAddChildGraphNode(self, graph: Graph, before: list[Any] | None,
                                 count: int, child: Graph) -> tuple[int, Any]:
        return self._added(graph, before, count, tuple(child))

    def cuGraphAddEventRecordNode(self, graph: Graph, before: list[Any] | None,
                                  count: int, event: str) -> tuple[int, Any]:
        return self._added(graph, before, count, event)

    def _added(self, graph: Graph, before: list[Any] | None, count: int,
               node: Any) -> tuple[int, Any]:
        # each node waits for the one before it
        assert (before or []) == graph[-1:] and count == len(before or [])
        self.calls += 1
        graph.append(node)
        return 0, node


def executed(node: Any) -> list[str]:
    """Returns what a node executes, in order."""
    return [node] if isinstance(node, str) else [each for part in node for each in executed(part)]


@pytest.mark.parametrize("events", [(), ("first", "last")])
@pytest.mark.parametrize(("repeats", "most_calls"), [(1, 1), (2, 2), (3, 3), (4, 4), (7, 6),
                                                     (100, 20)])
def test_a_graph_is_repeated_by_few_calls(monkeypatch: pytest.MonkeyPatch, repeats: int,
                                          most_calls: int, events: tuple[str, ...]) -> None:
    driver = CountingDriver()
    monkeypatch.setattr(cuda_device, "driver", driver)
    monkeypatch.setattr(cuda_device, "check", lambda result: result[1])
    graph, once = Graph(), Graph(["work"])
    cuda_device._repeat(graph, once, repeats, events)  # type: ignore[arg-type]
    assert executed(graph) == [*events[:1], *["work"] * repeats, *events[1:]]
    assert driver.calls - len(events) <= most_calls
    assert len(driver.graphs) == (repeats > 3) and not any(driver.graphs)
