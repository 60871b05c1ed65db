"""Calls that are bound to arrays, inputs by name, and what plans refuse to bind."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from gossamer.device.registry import find
from gossamer.errors import DeviceError, InputError
from gossamer.plan.plan import Plan
from tests.fixtures import needed
from tests.golden import Golden
from tests.model.onnx_models import model
from tests.plan.small import assert_close, compiled, expected, images, small
from tests.processes import in_threads

BATCH = 4


@pytest.fixture(params=["host", "pocl"])
def plan(request: pytest.FixtureRequest, tmp_path: Path) -> Plan:
    return compiled(small(), needed(request.param), tmp_path)


def test_a_bound_call_reads_what_its_input_holds(plan: Plan) -> None:
    x = images(BATCH)
    call = plan.bind(x)
    for seed in range(4):
        x[...] = images(BATCH, seed)
        y = call()
        assert y is call.outputs
        assert_close(y, expected(images(BATCH, seed)))
        assert_close(plan(x), y)


def test_a_bound_call_writes_what_it_was_given(plan: Plan) -> None:
    x, y = images(BATCH), np.full((BATCH, 4), np.nan, np.float32)
    call = plan.bind(x, out=y)
    assert np.isnan(y).all()
    assert call() is y
    assert_close(y, expected(x))


def test_an_input_with_other_strides_is_read_anew(plan: Plan) -> None:
    whole = np.zeros((2 * BATCH, *images(1).shape[1:]), np.float32)
    call = plan.bind(whole[::2])
    for seed in range(2):
        whole[::2] = images(BATCH, seed)
        assert_close(call(), expected(images(BATCH, seed)))


@pytest.mark.parametrize("dtype", ["uint8", "float16", "int16", ">f4", "bool"])
def test_inputs_that_convert_without_loss(plan: Plan, dtype: str) -> None:
    x = np.abs(images(BATCH) * 20).round().astype(dtype)
    call, right = plan.bind(x), expected(x.astype(np.float32))
    assert_close(plan(x), right)
    assert_close(plan(np.asfortranarray(x)), right)
    assert_close(call(), right)


def test_bound_calls_of_several_batch_sizes_and_threads(plan: Plan) -> None:
    def run(batch: int) -> None:
        x = images(batch, batch)
        call = plan.bind(x)
        for _ in range(20):
            np.testing.assert_allclose(call(), expected(x), rtol=1e-4, atol=1e-5)

    in_threads(run, (1, 2, 2, 3))


def test_a_bound_call_outlives_its_plan(plan: Plan) -> None:
    x = images(BATCH)
    call = plan.bind(x)
    plan.close()
    del plan
    gc.collect()
    assert_close(call(), expected(x))


def test_tensors_of_torch_in_host_memory(plan: Plan) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)
    x = torch.from_numpy(images(BATCH))
    call = plan.bind(x)
    y = call()
    assert isinstance(y, torch.Tensor)
    assert_close(y.numpy(), expected(images(BATCH)))
    x.resize_(1)
    with pytest.raises(InputError, match=r"input 'x' was resized.*bind the call again"):
        call()


def test_inputs_by_name(plan: Plan) -> None:
    x = images(BATCH)
    for y in (plan(x=x), plan({"x": x}), plan.bind(x=x)(), plan.bind({"x": x})()):
        assert_close(y, expected(x))
    for call in (lambda: plan(x, x=x), lambda: plan(z=x), lambda: plan({"x": x}, z=x),
                 lambda: plan({})):
        with pytest.raises(InputError, match=r"takes .*'x'"):
            call()


def test_what_cannot_be_bound(plan: Plan, golden: Golden) -> None:
    x, y = images(BATCH), np.empty((BATCH, 4), np.float32)
    golden.refusals("bound calls: outputs", {
        case: lambda out=out: plan.bind(x, out=out) for case, out in {
            "shape": np.empty((BATCH, 5), np.float32), "dtype": np.empty((BATCH, 4), np.float64),
            "a text": "y", "two": (y, y), "turned": np.empty((4, BATCH), np.float32).T,
            "one row": np.broadcast_to(y[:1], (BATCH, 4)),
            "the input": x.reshape(-1)[:4 * BATCH].reshape(BATCH, 4)}.items()})
    golden.refusals("bound calls: inputs", {
        case: lambda array=array: plan.bind(array) for case, array in {
            "no images": images(0), "no batch": images(1)[0],
            "float64": images(1).astype(np.float64)}.items()})


def test_arrays_that_never_change_are_not_bound(plan: Plan, monkeypatch: pytest.MonkeyPatch
                                                ) -> None:
    monkeypatch.setattr("gossamer.plan.run.bound.library", lambda array: "jax")
    with pytest.raises(InputError, match="JAX arrays are immutable"):
        plan.bind(images(BATCH))


def test_two_outputs_of_one_memory(tmp_path: Path) -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"], "relu"),
                   helper.make_node("Flatten", ["y"], ["z"], "flat")],
                  {"x": ["N", 3, 2]}, {"y": 3, "z": 2})
    plan = compiled(proto, find("host"), tmp_path)
    x = np.random.default_rng(0).standard_normal((2, 3, 2)).astype(np.float32)
    y, z = np.empty((2, 3, 2), np.float32), np.empty((2, 6), np.float32)
    plan.bind(x, out=(y, z))()
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    np.testing.assert_array_equal(z, np.maximum(x, 0).reshape(2, 6))
    with pytest.raises(InputError, match="out for 'z' shares memory with out for 'y'"):
        plan.bind(x, out=(y, y.reshape(2, 6)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_process_refuses_a_bound_call(pocl: Any, tmp_path: Path) -> None:
    call = compiled(small(), pocl, tmp_path).bind(images(BATCH))
    child = os.fork()
    if not child:
        try:
            call()
        except DeviceError as error:
            os._exit(0 if "fork" in str(error) else 1)
        except BaseException:
            os._exit(2)
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _tensor(torch: Any, seed: int = 0) -> Any:
    return torch.from_numpy(images(BATCH, seed)).cuda()


def test_tensors_are_bound_in_place(on_cuda: Plan, torch: Any) -> None:
    x, y = _tensor(torch), torch.full((BATCH, 4), float("nan"), device="cuda")
    call = on_cuda.bind(x, out=y)
    for seed in range(3):
        x.copy_(torch.from_numpy(images(BATCH, seed)))
        assert call() is y
        assert_close(y.cpu().numpy(), expected(images(BATCH, seed)))
    x.resize_(1)
    with pytest.raises(InputError, match="was resized"):
        call()


def test_bound_calls_and_others_share_a_context_on_two_streams(on_cuda: Plan, torch: Any) -> None:
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    inputs = [_tensor(torch, seed) for seed in range(2)]
    torch.cuda.synchronize()
    calls = []
    for x, stream in zip(inputs, streams, strict=True):
        with torch.cuda.stream(stream):
            calls.append(on_cuda.bind(x))
    other = _tensor(torch, 2)
    torch.cuda.synchronize()
    for _ in range(50):
        results = []
        for call, stream in zip(calls, streams, strict=True):
            with torch.cuda.stream(stream):
                results.append(call() + 0)
        results.append(on_cuda(other))
        torch.cuda.synchronize()
        for seed, y in enumerate(results):
            assert_close(y.cpu().numpy(), expected(images(BATCH, seed)))


def test_what_a_caller_holds_is_not_written_again(on_cuda: Plan, torch: Any) -> None:
    x, results = _tensor(torch), []
    for seed in range(10):
        x.copy_(torch.from_numpy(images(BATCH, seed)))
        results.append(on_cuda(x))
    for seed, y in enumerate(results):
        assert_close(y.cpu().numpy(), expected(images(BATCH, seed)))


def test_known_calls_check_the_form_of_each_tensor(on_cuda: Plan, torch: Any) -> None:
    x = _tensor(torch)
    for _ in range(4):
        on_cuda(x)
    with pytest.raises(InputError, match="dtype float64"):
        on_cuda(x.double())
    turned = x.transpose(2, 3).contiguous().transpose(2, 3)
    assert_close(on_cuda(turned).cpu().numpy(), expected(images(BATCH)))
    assert_close(on_cuda(x.bfloat16().float()).cpu().numpy(), on_cuda(x.bfloat16()).cpu().numpy())
    with pytest.raises(InputError, match=r"requires? grad"):
        on_cuda(x.clone().requires_grad_())
    assert_close(on_cuda(x[:2]).cpu().numpy(), expected(images(BATCH))[:2])
    on_cuda.close()
    with pytest.raises(InputError, match="the plan is closed"):
        on_cuda(x)


def test_many_bound_calls_take_no_memory(on_cuda: Plan, torch: Any) -> None:
    x = _tensor(torch)
    call = on_cuda.bind(x)
    call()
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    for _ in range(10_000):
        call()
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] == before
    assert_close(call.outputs.cpu().numpy(), expected(images(BATCH)))


def test_outputs_that_cannot_be_bound_on_the_device(on_cuda: Plan, torch: Any) -> None:
    x = _tensor(torch)
    for out, message in ((torch.empty(BATCH, 4), "is in host memory"),
                         (torch.empty(4, BATCH, device="cuda").T, "is not contiguous"),
                         (torch.empty(BATCH, 4, device="cuda").half(), "is float16, expected"),
                         (torch.empty(BATCH, 5, device="cuda"), "has shape"),
                         (x.view(-1)[:4 * BATCH].view(BATCH, 4), "shares memory with input 'x'")):
        with pytest.raises(InputError, match=f"out for .* {message}"):
            on_cuda.bind(x, out=out)
