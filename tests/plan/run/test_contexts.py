"""Calls of several threads, streams and processes, and the contexts that they take."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.errors import DeviceError, InputError, OutOfMemoryError
from gossamer.plan.plan import Plan
from gossamer.plan.run.context import Context
from tests.model.onnx_models import save
from tests.plan.small import assert_close, compiled, expected, images, small
from tests.processes import in_threads, python


@pytest.fixture
def plan(quick_device: Device, tmp_path: Path) -> Plan:
    return compiled(small(), quick_device, tmp_path)


def check(plan: Plan, seed: int) -> None:
    assert_close(plan(images(2, seed)), expected(images(2, seed)))


def held(plan: Plan, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Makes the execution of each call wait until so many calls are executed at once."""
    barrier = threading.Barrier(count)
    execute = Context.execute

    def waiting(self: Context, stream: Any = None) -> None:
        barrier.wait(timeout=20)
        execute(self, stream)

    monkeypatch.setattr(Context, "execute", waiting)


def test_a_further_context_computes_the_same(plan: Plan) -> None:
    first, second = plan.context(2), plan.context(2)
    x = {"x": images(2, 0)}
    (y,), (other,) = first.run(x).values(), second.run(x).values()
    np.testing.assert_array_equal(y, other)
    assert_close(y, expected(images(2, 0)))


def test_calls_of_several_threads_run_at_once(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    plan.contexts = 3
    held(plan, monkeypatch, 3)
    in_threads(partial(check, plan), range(3))
    assert plan.memory["activations"] == 3 * plan.context(2).buffers.activation_bytes


def test_a_first_call_and_the_time_of_the_plan_do_not_wait_for_each_other(
        plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    plan.tuner = None
    contexts, makes = plan._calls.contexts, threading.Event()
    make = contexts.make

    def slow(batch: int, stream: Any) -> Context:
        makes.set()
        time.sleep(0.2)
        return make(batch, stream)

    monkeypatch.setattr(contexts, "make", slow)
    call = threading.Thread(target=plan, args=(images(2),), daemon=True)
    call.start()
    assert makes.wait(20)
    timing = threading.Thread(target=plan.end_to_end, args=(2,), daemon=True)
    timing.start()
    for thread in (call, timing):
        thread.join(20)
        assert not thread.is_alive()


def test_further_calls_wait(plan: Plan) -> None:
    plan.contexts = 2

    def call(seed: int) -> None:
        for batch in (1, 2, 3):
            x = images(batch, seed)
            assert_close(plan(x), expected(x))

    in_threads(call, range(8))
    most = sum(plan.context(batch).buffers.activation_bytes for batch in (1, 2, 3))
    assert most <= plan.memory["activations"] <= 2 * most


def test_a_device_that_is_full_gives_fewer_contexts(plan: Plan, monkeypatch: pytest.MonkeyPatch
                                                    ) -> None:
    made: list[int] = []
    make = plan._calls.contexts.make

    def limited(batch: int, stream: Any) -> Context:
        if len(made) == 2:
            raise OutOfMemoryError("no memory left")
        made.append(batch)
        return make(batch, stream)

    monkeypatch.setattr(plan._calls.contexts, "make", limited)
    held(plan, monkeypatch, 2)
    in_threads(partial(check, plan), range(4))
    assert made == [2, 2]


def test_a_first_context_that_cannot_be_made_is_an_error_each_time(
        plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Mock(side_effect=OutOfMemoryError("no memory left"))
    with monkeypatch.context() as patch:
        patch.setattr(plan._calls.contexts, "make", full)
        for _ in range(2):
            with pytest.raises(DeviceError, match="no memory left"):
                plan(images(2))
    assert_close(plan(images(2)), expected(images(2)))


def test_a_plan_that_is_closed_during_calls_ends_them_whole_or_refuses_them(plan: Plan) -> None:
    begins_to_close = threading.Event()
    refused: list[int] = []

    def call(seed: int) -> None:
        for calls_made in range(20):
            if not seed and calls_made == 5:
                begins_to_close.set()
                plan.close()
            try:
                y = plan(images(2, seed))
            except InputError as error:
                assert "the plan is closed" in str(error) and begins_to_close.is_set()
                refused.append(seed)
                return
            assert_close(y, expected(images(2, seed)))

    in_threads(call, range(4))
    assert 0 in refused


def test_the_number_of_contexts_is_checked(plan: Plan) -> None:
    assert plan.contexts == 4
    with pytest.raises(InputError, match="contexts is 0, expected 1 or more"):
        plan.contexts = 0


def test_tasks_await_their_results(plan: Plan) -> None:
    async def all_results() -> list[np.ndarray]:
        return await asyncio.gather(*(plan.run_async(images(2, seed)) for seed in range(6)),
                                    plan.run_async(x=images(2, 6)))

    for seed, y in enumerate(asyncio.run(all_results())):
        assert_close(y, expected(images(2, seed)))


def test_a_wrong_input_is_refused_in_its_task(plan: Plan) -> None:
    with pytest.raises(InputError, match="input 'x' has dtype float64"):
        asyncio.run(plan.run_async(images(1).astype(np.float64)))


def test_tensors_on_several_streams(on_cuda: Plan, torch: Any) -> None:
    def call(index: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            inputs = [torch.from_numpy(images(batch, index)).cuda() for batch in (1, 2, 3)]
            for _ in range(50):
                for batch, x in zip((1, 2, 3), inputs, strict=True):
                    y = on_cuda(x).cpu().numpy()
                    assert_close(y, expected(images(batch, index)))

    in_threads(call, range(8))
    assert on_cuda.memory["activations"] <= 4 * sum(
        on_cuda.context(batch).buffers.activation_bytes for batch in (1, 2, 3))


def test_tasks_of_tensors_await_the_device(on_cuda: Plan, torch: Any) -> None:
    async def one(seed: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            y = await on_cuda.run_async(torch.from_numpy(images(2, seed)).cuda())
        assert_close(y.cpu().numpy(), expected(images(2, seed)))

    async def several() -> None:
        await asyncio.gather(*(one(seed) for seed in range(6)))

    asyncio.run(several())


PROGRAM = """
import os, sys
import numpy as np
import gossamer
from gossamer.errors import DeviceError
plan = gossamer.compile(sys.argv[1], sys.argv[2])
x = np.zeros((1, *plan.inputs[0].shape[1:]), np.float32)
plan(x)
context = plan.context(1)
child = os.fork()
if child == 0:
    refused = []
    for call in (lambda: plan(x), lambda: context.run({plan.inputs[0].name: x}),
                 lambda: plan.context(1)):
        try:
            call()
        except DeviceError as error:
            refused.append("forked" in str(error))
    os._exit(0 if refused == [True] * 3 else 1)
_, status = os.waitpid(child, 0)
plan(x)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_forked_process_refuses_a_plan(compiled_device: Device, tmp_path: Path,
                                         own_cache: Path) -> None:
    if not compiled_device.compiles or compiled_device.is_simulator:
        pytest.skip("the host works in forked processes, and the simulator is slow")
    python(PROGRAM, save(small(), tmp_path), compiled_device.name, timeout=100)
