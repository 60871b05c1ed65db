"""Drawn requests, calls with arrays that fit or do not, and memory of drawn lifetimes give what was
recorded."""

from __future__ import annotations

import math
import random
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from gossamer.errors import GossamerError
from gossamer.model.builder import GraphBuilder
from gossamer.model.formats import with_formats
from gossamer.model.graph import Graph, as_called
from gossamer.model.input_format import InputFormat
from gossamer.plan.run import requests
from gossamer.plan.run.binding import as_called_for, batch_of, by_name, fill, in_order, single
from gossamer.plan.run.memory import Lifetime, place
from gossamer.plan.run.requests import Request, WaitingRequests, chosen_size, measured_times
from tests.recorded import Recorded, as_text, digest

SIZES = ({}, {1: 1.0}, {1: 1.0, 2: 1.1, 4: 1.2}, {2: 1.0, 8: 3.0}, {1: 1.0, 2: 2.0, 4: 4.0})
"""Seconds of each batch size."""

ACTIONS = ("add", "add", "add", "next", "next", "finish", "drop", "cancel", "fail")


class _Clock:
    """A clock that is set by the test."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


class _Lane:
    """Inputs of a batch as lanes have them."""

    def __init__(self, size: int) -> None:
        self.arrays = [np.full((size, 2), -1.0, np.float32), np.zeros((size, 1), np.int64)]


class _Lanes:
    """Lanes that give the inputs back, each image's output in two rows, and a second output."""

    def take(self, size: int) -> _Lane:
        self.taken = size
        return _Lane(size)

    def begun(self, lane: _Lane, arrays: list[np.ndarray]) -> Any:
        return lambda: [np.repeat(arrays[0], 2, axis=0), arrays[1]]


def _result(request: Request) -> str:
    if not request.result.done():
        return "running" if request.result.running() else "waits"
    if request.result.cancelled():
        return "cancelled"
    error = request.result.exception()
    return f"{type(error).__name__}" if error else digest(request.result.result())


def _drawn_requests(seed: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns what came of drawn calls of a queue of requests."""
    rng, clock, done = random.Random(seed), _Clock(), []
    monkeypatch.setattr(requests, "time", clock)
    members: list[Any] = ["first", "second"][:1 + seed % 2]
    times = {member: SIZES[seed % len(SIZES)] for member in members}
    waiting, made, begun = WaitingRequests(times), [], []
    for number in range(24):
        clock.now += rng.choice((0.0, 0.5, 2.0))
        action = rng.choice(ACTIONS) if number else "add"
        if action == "add":
            rows = rng.choice((1, 1, 2, 3, 4, 5, 9))
            values = np.arange(2.0 * rows, dtype=np.float32).reshape(rows, 2) + 100 * len(made)
            request = Request([values, np.full((rows, 1), len(made), rng.choice((
                np.int64, np.int32)))], rows, clock.now + rng.choice((0.5, 1.15, 5.0, math.inf)),
                clock.now + rng.choice((1.0, 4.0, math.inf)))
            made.append(request)
            waiting.add(request)
        elif action == "next":
            task = waiting.next_task(rng.choice(members))
            if task is not None:
                begun.append(task)
        elif action == "finish" and begun:
            task = begun.pop(rng.randrange(len(begun)))
            if rng.random() < 0.2:
                task.result.set_exception(ValueError("a fault"))
            else:
                lanes: Any = _Lanes()
                task.result.set_result(task.begin(lanes)())
                done.append(lanes.taken)
        elif action == "drop":
            waiting.drop_unwanted()
        elif action == "cancel":
            rng.choice(made).result.cancel()
        elif action == "fail" and rng.random() < 0.2:
            waiting.fail_all(ValueError("closed"))
        done.append(f"{action} {waiting.rows} {len(waiting._heap)}")
    return (f"{digest(done)} {sorted(waiting.batches.items())} {waiting.rows} left, "
            + " ".join(map(_result, made)))


def test_requests(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded("requests", {str(seed): _drawn_requests(seed, monkeypatch) for seed in range(60)})


def test_sizes_of_batches(recorded: Recorded) -> None:
    texts = {}
    for rows in ([1], [2], [1, 1], [1, 2, 1], [1, 1, 1, 1], [4], [2, 2, 2], [1] * 9):
        for sizes in SIZES[2:]:
            if rows[0] <= max(sizes):
                texts[f"{rows} in {list(sizes.items())}"] = str(
                    [chosen_size(rows, left, sizes) for left in (0.0, 1.0, 1.1, 1.15, 2.0, 9.0)])
    for seconds in product((1.0, 1.9, 1.99, 4.0), (1.5, 3.0, 3.9), (3.0, 8.0), (5.0, 6.0, 17.0)):
        taken = dict(zip((1, 2, 4, 8), seconds, strict=True))
        texts[f"seconds {seconds}"] = " ".join(
            str(list(measured_times(taken.__getitem__, (1, 2, 4, 8), most)))
            for most in (0.5, 3.0, math.inf))
    recorded("batch_sizes", texts)


def test_batches_that_are_begun_in_a_row(recorded: Recorded,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that computes has less time left for the next batch."""
    texts = {}
    for index, due, rows, passed in product(range(2, len(SIZES)), (0.5, 1.0, 1.15, 2.0, 2.2, 3.3,
                                                                   4.0, 9.0),
                                            (1, 2, 5), (0.0, 0.5, 1.0)):
        clock = _Clock()
        monkeypatch.setattr(requests, "time", clock)
        waiting = WaitingRequests({"one": SIZES[index],  # type: ignore[dict-item]
                                   "two": SIZES[index]})
        for number in range(9):
            waiting.add(Request([np.zeros((rows, 1))], rows, clock.now + due + number / 4,
                                math.inf))
        sizes = []
        for member in ("one", "one", "two", "one", "two"):
            before = waiting.batches.copy()
            waiting.next_task(member)  # type: ignore[arg-type]
            sizes += list(waiting.batches - before)
            clock.now += passed
        texts[f"{list(SIZES[index])}, due in {due}, {rows} rows, {passed} s apart"] = (
            f"{sizes} {waiting.rows} left")
    recorded("batches_in_a_row", texts)


def graphs() -> dict[str, Graph]:
    """Returns networks with one input or two, whose batch is free or fixed."""
    made = {}
    image: tuple[int | None, ...] = (None, 3, 4, 5)
    for name, shapes in (("image", [image]), ("two", [image, (None, 2)]), ("fixed", [(2, 3)]),
                         ("number", [()]), ("mixed", [(None, 2), (7,)])):
        build = GraphBuilder(name)
        for index, shape in enumerate(shapes):
            value = build.apply("relu", build.input(f"x{index}", shape))
            build.output(value, shape)
        made[name] = build.finish()
    made["bytes"] = with_formats(made["image"], InputFormat("uint8", "NHWC"), None)
    made["bfloat16"] = with_formats(made["image"], InputFormat("bfloat16"), None)
    return made


def _outcome(call: Any) -> str:
    try:
        return as_text(call())
    except GossamerError as error:
        return f"{type(error).__name__}: {error}"


def test_arrays_that_fit_or_do_not(recorded: Recorded) -> None:
    texts = {}
    candidates: list[Any] = [np.zeros(shape, dtype) for shape in (
        (1, 3, 4, 5), (2, 3, 4, 5), (2, 4, 5, 3), (0, 3, 4, 5), (2, 3, 4), (2, 2), (2, 3), (1, 3),
        (), (7,), (2, 3, 3, 3)) for dtype in ("float32", "float16", "float64", "uint8", "uint16")]
    candidates += [3.0, [1.0], "text"]
    for name, graph in graphs().items():
        called = as_called(graph)
        count = len(graph.inputs)

        def batch(arrays: tuple[Any, ...], graph: Graph = graph, called: Graph = called) -> object:
            inputs = as_called_for(graph, in_order(called, arrays, {}))
            found = batch_of(called, inputs)
            return found, by_name(called, inputs)

        lines = [_outcome(partial(batch, (first, second)[:count])) for first in candidates
                 for second in (candidates if count > 1 else [None])]
        texts[name] = f"{len(lines)} {digest(lines)}"
        for line in list(dict.fromkeys(line for line in lines if "Error" in line))[:6]:
            texts[f"{name} {len(texts)}"] = line
        x = np.zeros((2, 3))
        for number, (given, named) in enumerate((
                ((), {}), ((x,), {}), ((x, x), {}), ((x, x, x), {}), (({"x0": x},), {}),
                (({"x0": x, "x1": x},), {}), ((), {"x0": x}), ((x,), {"x1": x}),
                ((), {"x1": x, "x0": x}), (({"x0": x},), {"x1": x}), ((), {"y": x}))):
            texts[f"{name} in order {number}"] = _outcome(partial(in_order, called, given, named))
    results = (np.ones((2, 3), np.float32), np.ones(2, np.int64))
    locked = np.zeros((2, 3), np.float32)
    locked.setflags(write=False)
    for number, out in enumerate((
            (np.zeros((2, 3), np.float32), np.zeros(2, np.int64)), np.zeros((2, 3), np.float32),
            [np.zeros((2, 3), np.float32)], (np.zeros((2, 3)), np.zeros(2, np.int64)),
            (np.zeros((3, 2), np.float32), np.zeros(2, np.int64)), (locked, np.zeros(2, np.int64)),
            ([0.0], np.zeros(2, np.int64)))):
        texts[f"fill {number}"] = _outcome(partial(fill, out, results))
    texts["single"] = as_text([single([1]), single([1, 2]), single([])])
    recorded("bindings", texts)


def test_places_in_memory(recorded: Recorded) -> None:
    texts = {}
    for seed in range(40):
        rng = random.Random(seed)
        values = {}
        for index in range(rng.randrange(1, 9)):
            first = rng.randrange(-1, 6)
            values[f"v{index}"] = Lifetime(rng.choice((1, 63, 64, 65, 200)), first,
                                           first + rng.randrange(0, 4))
        offsets, total = place(values, (64, 256)[seed % 2])
        for name, offset in offsets.items():
            for other, begin in offsets.items():
                if name != other and values[name].first <= values[other].last and (
                        values[other].first <= values[name].last):
                    assert offset + values[name].nbytes <= begin or (
                        begin + values[other].nbytes <= offset)
        texts[str(seed)] = f"{total} {as_text(offsets)}"
    recorded("places_in_memory", texts)
