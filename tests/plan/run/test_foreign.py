"""Which arrays count as arrays of other libraries, and what plans compute of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from gossamer.errors import InputError
from gossamer.model.builder import GraphBuilder
from gossamer.plan.plan import Plan
from gossamer.plan.run.binding import is_foreign
from tests.plan.run.exchanging import ExchangingHost, Foreign


@pytest.mark.parametrize(("array", "foreign"), [
    (SimpleNamespace(__dlpack__=None), True),
    (SimpleNamespace(__cuda_array_interface__={}), True),
    (SimpleNamespace(__array__=None), False),
    (np.zeros(2), False), ([1, 2], False)])
def test_foreign_arrays(array: object, foreign: bool) -> None:
    assert is_foreign(array) is foreign


@pytest.mark.parametrize(("on_device", "stream"), [(False, None), (True, None), (True, "own")])
def test_all_ways_to_call_compute_the_difference_of_each_batch(on_device: bool,
                                                               stream: str | None) -> None:
    device, build, rng = ExchangingHost(), GraphBuilder("difference"), np.random.default_rng(0)
    build.output(build.apply("sub", *(build.input(name, (None, 3)) for name in "xy")), (None, 3))
    plan = Plan(build.finish(), device)
    batches = [rng.standard_normal((2, rows, 3), np.float32) for rows in (2, 1, 3, 0, 2, 2, 1)]
    given = [tuple(Foreign(array, on_device) for array in batch) for batch in batches]
    for results in ([plan.bind(*arrays, stream=stream)() if len(arrays[0].array) else plan(*arrays)
                     for arrays in given], list(plan.stream(given)),
                    [asyncio.run(plan.run_async(*arrays, stream=stream)) for arrays in given],
                    [plan(*arrays, stream=stream) for arrays in given]):
        for (x, y), result in zip(batches, results, strict=True):
            np.testing.assert_array_equal(result.array if on_device else result, x - y, strict=True)
    # the library of the arrays does not know that the stream still reads them
    assert not on_device or device.log[-1] == f"synchronised {stream}"
    device.closed.add("own")
    plan(*given[0], stream="other")
    for call in (plan, plan.bind) if on_device else ():
        with pytest.raises(InputError, match="stream own was closed"):
            call(*given[0], stream="own")
