"""Modules on a CUDA device stay there, in their dtype and memory format, on torch's stream."""

from __future__ import annotations

import gc

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import gossamer
from gossamer.errors import InputError
from tests.tolerances import normalised_error
from tests.torch.small import images, residual

if not torch.cuda.is_available():
    pytest.skip("torch sees no CUDA device", allow_module_level=True)


def half(module):
    return module.cuda().half().to(memory_format=torch.channels_last)


@pytest.fixture
def module():
    return half(residual())


@pytest.fixture
def x():
    return half(images())


def test_module_stays_on_its_device(module, x):
    fast = gossamer.optimize(module, x)
    with torch.inference_mode():
        for batch in (1, 3, 64):
            given = half(images(batch, seed=batch))
            y, expected = fast(given), module(given)
            assert (y.device, y.dtype) == (expected.device, torch.float16)
            assert normalised_error(y.cpu().numpy(), expected.cpu().numpy()) < 5e-3
    assert {row["device"] for row in fast.report(3).rows} == {fast.plan.device.name}


def test_channels_last_results_stay():
    module = half(nn.Conv2d(8, 8, 3, padding=1).eval())
    x = half(torch.randn(2, 8, 8, 8))
    y = gossamer.optimize(module, x)(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        assert normalised_error(y.cpu().numpy(), module(x).cpu().numpy()) < 2e-3


def test_calls_on_several_streams(module, x):
    fast = gossamer.optimize(module, x)
    inputs = [half(images(4, seed)) for seed in range(8)]
    with torch.no_grad():
        expected = [module(given) for given in inputs]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    results = []
    for index, given in enumerate(inputs):
        with torch.cuda.stream(streams[index % 2]):
            results.append(fast(given))
    torch.cuda.synchronize()
    for y, theirs in zip(results, expected, strict=True):
        assert normalised_error(y.cpu().numpy(), theirs.cpu().numpy()) < 5e-3


def test_memory_is_flat_and_goes(module, x):
    def left() -> int:
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]

    # a first plan loads libraries and their kernels, which stay
    gossamer.optimize(module, x)(x)
    before = left()
    fast = gossamer.optimize(module, x)
    for _ in range(200):
        fast(x.clone())
    torch.cuda.synchronize()
    warm = torch.cuda.mem_get_info()[0]
    for _ in range(10_000):
        fast(x.clone())
    torch.cuda.synchronize()
    assert abs(torch.cuda.mem_get_info()[0] - warm) <= 4 << 20
    del fast
    assert before - left() <= 32 << 20


def test_update_on_a_device(module, x):
    fast = gossamer.optimize(module, x)
    other = half(residual(seed=4))
    fast.update(other)
    with torch.no_grad():
        assert normalised_error(fast(x).cpu().numpy(), other(x).cpu().numpy()) < 5e-3


def test_other_places_are_refused(module, x):
    with pytest.raises(InputError, match=r"the module is on cuda:0, but device= names host"):
        gossamer.optimize(module, x, device="host")
    fast = gossamer.optimize(module, x)
    with pytest.raises(InputError, match=r"input 'x' is on cpu, but the module is on cuda:0"):
        fast(x.cpu())
