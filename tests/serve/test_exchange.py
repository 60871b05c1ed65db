"""Requests and results between an event loop and the threads of batchers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

import gossamer
from gossamer.errors import InputError
from gossamer.serve.connection import Exchange
from tests.model.onnx_models import save
from tests.plan.small import assert_close, images, small


def test_a_batcher_that_is_closed_computes_what_was_handed_over(tmp_path: Path) -> None:
    plan = gossamer.compile(str(save(small(), tmp_path)), "host")
    x = images(2)

    async def ask(*, is_handed_over: bool) -> np.ndarray:
        batcher = gossamer.Batcher(plan)
        exchange = Exchange()
        arriving = exchange.submit(batcher, {plan.inputs[0].name: x}, None)
        if is_handed_over:
            exchange.hand_over()
        batcher.close()
        return np.asarray(await arriving)

    assert_close(asyncio.run(ask(is_handed_over=True)), plan(x))
    with pytest.raises(InputError, match="the batcher is closed"):
        asyncio.run(ask(is_handed_over=False))


def test_a_wrong_request_fails_alone(tmp_path: Path) -> None:
    plan = gossamer.compile(str(save(small(), tmp_path)), "host")
    name, x = plan.inputs[0].name, images(3)

    async def ask() -> list[object]:
        with gossamer.Batcher(plan) as batcher:
            exchange = Exchange()
            return await asyncio.gather(*(
                exchange.submit(batcher, {name: array}, None)
                for array in (x, x[:, :1], x[:1])), return_exceptions=True)

    first, wrong, last = asyncio.run(ask())
    assert_close(np.asarray(first), plan(x))
    assert isinstance(wrong, InputError)
    assert_close(np.asarray(last), plan(x[:1]))
