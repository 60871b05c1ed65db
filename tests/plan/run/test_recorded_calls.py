"""Calls, bound calls and batches of streams with NumPy arrays and arrays of other libraries, in
host memory and on a device, give what was recorded."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.model.builder import GraphBuilder
from gossamer.plan.plan import Plan
from gossamer.plan.run import calls
from gossamer.plan.run.lanes import Lanes, PlanParts, checked
from tests.plan.run.exchanging import ExchangingHost, Foreign
from tests.recorded import Recorded, as_text, digest
from tests.recorded.outcomes import outcome

KINDS = ("numpy", "host", "device")


def _plan(inputs: int = 2, outputs: int = 1, batch: int | None = None) -> Plan:
    """Returns a plan that subtracts its inputs, on a device that exchanges arrays."""
    build = GraphBuilder("difference")
    values = [build.input(f"x{index}", (batch, 3)) for index in range(inputs)]
    build.output(build.apply("sub", values[0], values[-1]) if inputs > 1 else
                 build.apply("relu", values[0]), (batch, 3))
    if outputs > 1:
        build.output(build.apply("neg", values[0]), (batch, 3))
    return Plan(build.finish(), ExchangingHost())


def _array(rows: int, seed: int, kind: str, dtype: str = "float32") -> Any:
    values = np.random.default_rng(seed).integers(-9, 9, (rows, 3)).astype(dtype)
    return values if kind == "numpy" else Foreign(values, kind == "device")


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_text, value))})"
    if isinstance(value, Foreign):
        return f"{'device' if value.on_device else 'host'} {as_text(value.array)}"
    return as_text(value)


def _log(plan: Plan) -> str:
    device: Any = plan.device
    text = "; ".join(device.log)
    device.log.clear()
    return text


def test_calls(recorded: Recorded) -> None:
    texts = {}
    for kind, inputs, outputs, rows, given in itertools.product(
            KINDS, (1, 2), (1, 2), (0, 1, 2), (None, "s", "closed")):
        plan = _plan(inputs, outputs)
        plan.device.closed.add("closed")  # type: ignore[attr-defined]
        arrays = [_array(rows, seed, kind) for seed in range(inputs)]
        lines = []
        for _ in range(2):
            lines += [outcome(plan, *arrays, stream=given, text=_text), _log(plan)]
        lines += [str(plan._calls.last_batch), str(len(plan._calls._batches)),
                  str(len(plan._calls.contexts.all()))]
        texts[f"{inputs} of {kind} to {outputs}, {rows} rows, stream {given}"] = ", ".join(lines)
    recorded("calls", texts)


def test_calls_of_mixed_arrays(recorded: Recorded) -> None:
    texts = {}
    for first, second, dtype, rows, outs in itertools.product(
            KINDS, KINDS, ("float32", "float16", "float64"), (2, 3), (0, 1, 2)):
        plan = _plan()
        out = [_array(2, 9, "numpy") for _ in range(outs)]
        options = {"out": out[0] if outs == 1 else tuple(out)} if outs else {}
        arrays = _array(2, 0, first), _array(rows, 1, second, dtype)
        texts[f"{first} and {second} {dtype} of {rows}, {outs} given"] = (
            outcome(plan, *arrays, text=_text, **options) + f"; {_text(out)}; {_log(plan)}")
        texts[f"{first} and {second} {dtype} of {rows} by name, {outs} given"] = outcome(
            plan, x1=arrays[1], x0=arrays[0], text=_text, **options)
    recorded("calls_of_mixed_arrays", texts)


def test_asynchronous_calls(recorded: Recorded) -> None:
    texts = {}
    for kind, given in itertools.product(KINDS, (None, "s", "closed")):
        plan = _plan()
        plan.device.closed.add("closed")  # type: ignore[attr-defined]
        arrays = [_array(2, seed, kind) for seed in range(2)]
        texts[f"{kind} on {given}"] = outcome(
            lambda plan=plan, arrays=arrays, given=given: asyncio.run(plan.run_async(
                *arrays, stream=given)), text=_text) + f"; {_log(plan)}"
    recorded("asynchronous_calls", texts)


def test_bound_calls(recorded: Recorded) -> None:
    """Places are rows of one memory, so that arrays share none, one or all of their memory."""
    texts = {}
    for kind, given, rows in itertools.product(KINDS, (None, "s", "closed"), (0, 2)):
        for out in ("none", "own", "input", "half", "beside", "shape", "dtype", "two", "other"):
            plan = _plan(1)
            plan.device.closed.add("closed")  # type: ignore[attr-defined]
            memory = np.arange(60, dtype=np.float32).reshape(20, 3) - 5
            wrap = (lambda array: array) if kind == "numpy" else (
                lambda array, kind=kind: Foreign(array, kind == "device"))
            x = wrap(memory[4:4 + rows])
            target: Any = {
                "none": None, "own": wrap(np.zeros((rows, 3), np.float32)), "input": x,
                "half": wrap(memory[3 + rows:3 + 2 * rows]),
                "beside": wrap(memory[4 + rows:4 + 2 * rows]),
                "shape": wrap(np.zeros((rows + 1, 3), np.float32)),
                "dtype": wrap(np.zeros((rows, 3))), "two": (x, x), "other": [[0.0]]}[out]

            def call(plan: Plan = plan, x: Any = x, target: Any = target, given: Any = given,
                     memory: np.ndarray = memory) -> Any:
                bound = plan.bind(x, out=target, stream=given)
                first = _text(bound())
                memory[4] = 77
                return first, _text(bound()), len(bound._fixed)

            texts[f"{kind} {given} {rows} into {out}"] = (
                outcome(call, text=str) + f"; {_log(plan)}")
    recorded("bound_calls", texts)


def _begin(parts: Sequence[PlanParts], item: Any, lanes: Lanes, waiting: list[Any]) -> None:
    waiting.append(checked(parts, item, "reads")(lanes))


def test_batches_on_lanes(recorded: Recorded) -> None:
    """Batches are begun and collected in one thread, in drawn order."""
    texts = {}
    for seed in range(24):
        rng = random.Random(seed)
        plan, group = _plan(outputs=1 + seed % 2), seed % 3 == 2
        parts = plan.parts("be streamed")
        lanes = Lanes(parts, rng.randrange(3))
        lines: list[str] = []
        waiting: list[Any] = []
        for number in range(8):
            kind, rows = rng.choice(KINDS), rng.choice((0, 1, 2, 3))
            other = rng.choice((kind, kind, kind, rng.choice(KINDS)))
            arrays = _array(rows, number, kind), _array(rows, number + 50, other)
            item: Any = rng.choice((arrays, list(arrays), {"x1": arrays[1], "x0": arrays[0]},
                                    arrays[0]))

            lines.append(f"{kind} {other} {rows} {type(item).__name__} "
                         + outcome(_begin, [parts] * (1 + group), item, lanes, waiting))
            if waiting and rng.random() < 0.6:
                lines.append(outcome(lambda waiting=waiting: waiting.pop(0)()(), text=_text))
            lines.append(f"{_log(plan)} {[lane.batch for lane in lanes._idle]}")
        for index, line in enumerate(lines):
            if index < 6 or "Error" in line:
                texts[f"{seed} line {index}"] = line
        texts[f"{seed}"] = digest(lines)
    recorded("batches_on_lanes", texts)


def test_calls_that_were_checked_before(recorded: Recorded,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_MOST_FORMS", 4)
    plan, numbers = _plan(1), []
    for rows in (1, 2, 3, 1, 4, 4, 5, 1, 0, 2, 3, 4, 5, 6):
        plan(_array(rows, rows, "numpy"))
        numbers.append(len(plan._calls._batches))
        plan(_array(rows, rows, "host"))
    forms = [calls._form_on_host(arrays) is None for arrays in (
        [], [np.zeros(1)], [np.zeros(1), 1.0], [1.0], [np.zeros(1), np.zeros(2)],
        [np.ma.zeros(1)])]
    texts = {"numbers": str(numbers), "no form": str(forms)}
    for batch in (-1, 0, 1, 2):
        texts[f"pinned {batch}"] = outcome(plan.pinned, batch, text=lambda array: f"{array.shape}")
    plan.close()
    texts["closed"] = outcome(plan, _array(1, 1, "numpy")) + _log(plan)
    unused = _plan(1)
    unused.close()
    texts["closed before a call"] = _log(unused)
    recorded("calls_checked_before", texts)


def test_streams(recorded: Recorded) -> None:
    """The results of a stream do not depend on the times at which its threads work."""
    texts = {}
    for seed in range(30):
        rng = random.Random(seed)
        plan, batches = _plan(outputs=1 + seed % 2), []
        for number in range(rng.choice((0, 1, 2, 7))):
            kind, rows = rng.choice(KINDS[:2 + seed % 2]), rng.choice((0, 1, 2, 3))
            dtype = rng.choice(("float32", "float32", "float64"))
            batches.append(rng.choice((
                (_array(rows, number, kind), _array(rows, 9, kind, dtype)),
                {"x0": _array(rows, number, kind), "x1": _array(rows, 9, kind)}, "text")))
        errors, depth = rng.choice(("raise", "return")), rng.choice((1, 2, 3))
        results = plan.stream(batches, depth, errors=errors)
        lines = []
        for _ in range(len(batches) + 2):
            lines.append(outcome(lambda results=results: next(results), text=lambda value: (
                f"returned {value}" if isinstance(value, Exception) else _text(value))))
        results.close()
        texts[f"{seed} {errors} {depth}"] = " | ".join(lines)
    plan = _plan(1)
    for depth, errors in itertools.product((True, 0, -1, 1.0, 1, 2), ("raise", "ignore")):
        texts[f"depth {depth!r} {errors}"] = outcome(
            plan.stream, [], depth, errors=errors, text=lambda made: type(made).__name__)
    for given in ("text", {}, np.zeros(2), 5, [], iter(())):
        texts[f"batches of {type(given).__name__}"] = outcome(
            plan.stream, given, text=lambda made: type(made).__name__)
    recorded("streams", texts)


def test_calls_that_are_known(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls with equal forms are remembered where nothing was converted, and are computed in short
    unless they are to be shown."""
    texts = {}
    for form, level, logged, converts, knows in itertools.product(
            (None, (1, 2)), (0, 1, 2), (False, True), (False, True), (False, True)):
        plan, made = _plan(1), []

        class Known:
            def __init__(self, context: Any, form: Any, like: Any, made: list = made,
                         knows: bool = knows) -> None:
                made.append((form, like.shape))
                self.made, self.knows = made, knows

            def __call__(self, inputs: Any) -> Any:
                self.made.append("called")
                return ("in short",) if self.knows else None

        with monkeypatch.context() as patch:
            patch.setattr(calls, "form_of", lambda arrays, form=form: form)
            patch.setattr(calls, "KnownCall", Known)
            patch.setattr(calls.debug, "level", lambda level=level: level)
            patch.setattr(calls.debug, "show", lambda line: None)
            patch.setattr(calls.debug, "logger", SimpleNamespace(
                isEnabledFor=lambda level, logged=logged: logged))
            if converts:
                patch.setattr(calls, "as_taken",
                              lambda array, dtype: Foreign(array.array.astype(dtype), True))
            arrays = [_array(2, 0, "device"), _array(2, 1, "device"), _array(1, 0, "numpy")]
            lines = [outcome(plan, arrays[index], text=_text, **options) for index, options in (
                (0, {}), (0, {}), (1, {}), (0, {"stream": "s"}), (0, {"out": np.zeros((2, 3))}),
                (2, {}), (2, {}))]
            lines.append(outcome(plan, x0=arrays[0], text=_text))
        texts[f"form {form}, level {level}, logged {logged}, converts {converts}, knows {knows}"] \
            = f"{made} {len(plan._calls.contexts.known)} {digest(lines)} {lines[1]}"
    recorded("known_calls", texts)
