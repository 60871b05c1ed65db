"""Arrays of other libraries as inputs and outputs, on the host and on CUDA."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.errors import InputError
from gossamer.model.builder import GraphBuilder
from gossamer.plan.plan import Plan
from gossamer.plan.run.binding import is_foreign
from tests.plan.run.exchanging import ExchangingHost, Foreign
from tests.plan.small import assert_close, compiled, expected, images, small


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


BATCH = 4


@pytest.fixture
def plan(cuda: Device, tmp_path: Path) -> Plan:
    return compiled(small(), cuda, tmp_path, strict=True)


@pytest.fixture
def cupy(cuda: Device) -> Any:
    return pytest.importorskip("cupy", reason="cupy is not installed", exc_type=ImportError)


@pytest.fixture
def jax(cuda: Device, monkeypatch: pytest.MonkeyPatch) -> Any:
    # by default jax allocates three quarters of the GPU's memory
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    module = pytest.importorskip("jax", reason="jax is not installed", exc_type=ImportError)
    if module.default_backend() != "gpu":
        pytest.skip("this jax has no CUDA")
    return module


def tensor(torch: Any, seed: int = 0) -> Any:
    return torch.from_numpy(images(BATCH, seed)).cuda()


def assert_right(y: Any, seed: int = 0) -> None:
    """Asserts that a tensor is on the GPU and is the output for the images of a seed."""
    assert y.is_cuda
    assert_close(y.cpu().numpy(), expected(images(BATCH, seed)))


def refused(plan: Plan, array: Any, match: str) -> None:
    with pytest.raises(InputError, match=match) as error:
        plan(array)
    assert len(str(error.value).splitlines()) == 1


def test_a_tensor_is_read_in_place_from_the_second_time_on(
        plan: Plan, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, copy, copies = tensor(torch), plan.device.copy, []

    def counted(*arguments: Any) -> None:
        copies.append(arguments)
        copy(*arguments)

    monkeypatch.setattr(plan.device, "copy", counted)
    for seed in range(3):
        x.copy_(torch.from_numpy(images(BATCH, seed)))
        y = plan(x)
        assert isinstance(y, torch.Tensor)
        assert_right(y, seed)
    # one for the input, one for the output; later outputs are copied within a graph
    assert len(copies) == 2


def test_work_on_two_streams_is_ordered(plan: Plan, torch: Any) -> None:
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    inputs = [tensor(torch, seed) for seed in range(6)]
    torch.cuda.synchronize()
    results = []
    for index, x in enumerate(inputs):
        with torch.cuda.stream(streams[index % 2]):
            # the plan has to wait for the quotient, and the sum for the plan, whose own result is
            # freed before the sum is computed
            results.append(plan(x * 2 / 2) + 0)
    torch.cuda.synchronize()
    for seed, y in enumerate(results):
        assert_right(y, seed)


def test_a_stream_can_be_given(plan: Plan, torch: Any) -> None:
    stream = torch.cuda.Stream()
    results = []
    for seed in range(4):
        results.append(plan(tensor(torch, seed), stream=stream) + 0)
    for seed, y in enumerate(results):
        assert_right(y, seed)


def test_a_stream_that_was_closed(plan: Plan, torch: Any) -> None:
    from cuda.core import Device as CoreDevice
    x = tensor(torch)
    torch.cuda.synchronize()
    core_device = CoreDevice(0)
    core_device.set_current()
    stream = core_device.create_stream()
    assert_right(plan(x, stream=stream), 0)
    bound = plan.bind(x, stream=stream)
    bound()
    torch.cuda.synchronize()
    stream.close()
    for call in (bound, lambda: plan(x, stream=stream), lambda: plan.bind(x, stream=stream)):
        with pytest.raises(InputError, match=r"the stream .* was closed"):
            call()
    assert_right(plan(x), 0)


def test_a_tensor_that_starts_at_any_float(plan: Plan, torch: Any) -> None:
    x = torch.empty(images(BATCH).size + 1, device="cuda")[1:].view(images(BATCH).shape)
    assert x.data_ptr() % 16
    for seed in range(3):
        x.copy_(torch.from_numpy(images(BATCH, seed)))
        assert_right(plan(x), seed)


def test_memory_that_torch_uses_again(plan: Plan, torch: Any) -> None:
    addresses = []
    for seed in range(12):
        x = tensor(torch, seed)
        addresses.append(x.data_ptr())
        y = plan(x)
        del x
        other = torch.full(images(BATCH).shape, float("nan"), device="cuda")
        assert_right(y, seed)
        del other
    assert len(set(addresses)) < len(addresses)


def test_results_go_into_the_tensor_given(plan: Plan, torch: Any) -> None:
    for seed in range(3):
        out = torch.empty(expected(images(BATCH)).shape, device="cuda")
        assert plan(tensor(torch, seed), out=out) is out
        assert_right(out, seed)


def test_no_image_at_all(plan: Plan, torch: Any) -> None:
    y = plan(torch.empty((0, 3, 6, 5), device="cuda"))
    assert isinstance(y, torch.Tensor) and y.is_cuda
    assert tuple(y.shape) == (0, 4) and y.dtype == torch.float32


def test_tensors_that_do_not_fit_are_refused(plan: Plan, torch: Any) -> None:
    x = tensor(torch)
    refused(plan, x.double(), "input 'x' has dtype float64, expected float32")
    refused(plan, x[0], "input 'x' has shape 3x6x5, expected Nx3x6x5")
    refused(plan, x.requires_grad_(), "input 'x' cannot be read through DLPack: .*detach")
    assert_right(plan(x.detach()))


def test_tensors_of_narrower_dtypes_and_other_strides(plan: Plan, torch: Any) -> None:
    for seed in range(3):
        x = (tensor(torch, seed) * 20).round().abs()
        right = plan(x).cpu().numpy()
        for dtype in (torch.float16, torch.bfloat16, torch.uint8):
            assert_close(plan(x.to(dtype)).cpu().numpy(), right)
        assert_close(plan(x.to(torch.uint8, memory_format=torch.channels_last)).cpu().numpy(),
                     right)
        assert_close(plan(x.to(memory_format=torch.channels_last)).cpu().numpy(), right)
        assert_close(plan(x.transpose(2, 3).contiguous().transpose(2, 3)).cpu().numpy(), right)


def test_tensors_that_are_bound_are_not_converted(plan: Plan, torch: Any) -> None:
    x = tensor(torch)
    for wrong, match in ((x.half(), "has dtype float16, expected float32"),
                         (x.to(memory_format=torch.channels_last), r"is not contiguous")):
        with pytest.raises(InputError, match=match):
            plan.bind(wrong)


def test_cupy_arrays(plan: Plan, cupy: Any) -> None:
    for seed in range(3):
        y = plan(cupy.asarray(images(BATCH, seed)))
        assert isinstance(y, cupy.ndarray)
        assert_close(cupy.asnumpy(y), expected(images(BATCH, seed)))


def test_a_cupy_stream_that_does_not_wait_for_the_default_one(plan: Plan, cupy: Any) -> None:
    results = []
    for seed in range(3):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            results.append(plan(cupy.asarray(images(BATCH, seed)) * 2 / 2))
            stream.synchronize()
    for seed, y in enumerate(results):
        assert_close(cupy.asnumpy(y), expected(images(BATCH, seed)))


def test_jax_arrays(plan: Plan, jax: Any) -> None:
    for seed in range(3):
        y = plan(jax.numpy.asarray(images(BATCH, seed)))
        assert isinstance(y, jax.Array)
        assert {device.platform for device in y.devices()} == {"gpu"}
        assert_close(np.asarray(y), expected(images(BATCH, seed)))
