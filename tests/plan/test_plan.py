"""Plans: what they compute, what they refuse, and policies."""

from __future__ import annotations

import copy
import math
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import gossamer
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import DeviceError, InputError
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy
from tests.device.helpers import ForeignArray
from tests.fixtures import is_slow
from tests.golden import Golden
from tests.model.onnx_models import model, runtime, weights
from tests.plan.small import assert_close, compiled, expected, images, small
from tests.processes import in_threads


@pytest.fixture(scope="module")
def plan(quick_device: Device, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return compiled(small(), quick_device, tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def host_plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return compiled(small(), find("host"), tmp_path_factory.mktemp("small"))


@pytest.fixture
def pair(device: Device, tmp_path: Path) -> Plan:
    """A plan with two inputs and two outputs, x + y and x * y."""
    proto = model([helper.make_node("Add", ["x", "y"], ["sum"]),
                   helper.make_node("Mul", ["x", "y"], ["product"])],
                  {"x": ["N", 3], "y": ["N", 3]}, {"sum": 2, "product": 2})
    return compiled(proto, device, tmp_path)


def test_batch_changes_without_a_new_model(device: Device, tmp_path: Path) -> None:
    plan = compiled(small(), device, tmp_path)
    for seed, batch in enumerate((1, 2, 0, 1) if is_slow(device) else (1, 2, 5, 1, 0, 5, 2)):
        x = images(batch, seed)
        y = plan(x)
        assert y.shape == (batch, 4)
        assert_close(y, expected(x))


def test_a_plan_shows_what_and_where(pair: Plan, device: Device) -> None:
    assert repr(pair) == f"<Plan of {pair.graph.name} on {device.name}>"


def test_a_file_of_one_batch_size_runs_at_others(device: Device, tmp_path: Path) -> None:
    proto = model([helper.make_node("Relu", ["x"], ["a"]),
                   helper.make_node("Reshape", ["a", "shape"], ["b"]),
                   helper.make_node("Gemm", ["b", "w"], ["y"])],
                  {"x": [1, 2, 3]}, {"y": 2}, {"shape": np.array([1, 6]), "w": weights(6, 2)})
    plan = compiled(proto, device, tmp_path)
    x = weights(3, 2, 3, seed=9)
    references = [runtime(proto, {"x": x[i:i + 1]})[0] for i in range(3)]
    assert_close(plan(x), np.concatenate(references))
    assert_close(plan(x[:1]), references[0])


def test_batch_0_gives_empty_outputs(pair: Plan) -> None:
    none = np.zeros((0, 3), np.float32)
    for y in pair(none, none):
        assert (y.shape, y.dtype) == ((0, 3), np.float32)


def test_what_does_not_depend_on_the_batch_is_there_at_batch_0(device: Device,
                                                              tmp_path: Path) -> None:
    constant = weights(2, 3)
    proto = model([helper.make_node("Concat", ["x", "c"], ["y"], axis=0),
                   helper.make_node("ReduceSum", ["x", "axes"], ["z"], keepdims=1)],
                  {"x": ["N", 3]}, {"y": 2, "z": 2, "c": 2},
                  {"c": constant, "axes": np.array([0])})
    y, z, c = compiled(proto, device, tmp_path)(np.zeros((0, 3), np.float32))
    np.testing.assert_array_equal(y, constant)
    np.testing.assert_array_equal(z, np.zeros((1, 3)))
    np.testing.assert_array_equal(c, constant)


def test_outputs_are_fresh(plan: Plan) -> None:
    first = plan(images(2))
    copied = first.copy()
    second = plan(images(2, 1))
    np.testing.assert_array_equal(first, copied)
    assert not np.shares_memory(first, second)


def test_inputs_need_not_be_contiguous_and_stay_as_they_are(plan: Plan) -> None:
    x = np.asfortranarray(images(4))[::2]
    before = x.copy()
    assert_close(plan(x), expected(before))
    np.testing.assert_array_equal(x, before)


def test_out_receives_the_outputs(plan: Plan) -> None:
    x = images(2)
    room = np.full((2, 8), np.nan, np.float32)
    out = room[:, ::2]
    assert plan(x, out=out) is out
    assert_close(out, expected(x))
    assert np.isnan(room[:, 1::2]).all()


def test_out_receives_several_outputs(pair: Plan) -> None:
    x, y = np.float32([[1, 2, 3]]), np.float32([[4, 5, 6]])
    out = (np.zeros_like(x), np.zeros_like(x))
    results = pair(x, y, out=out)
    assert all(result is array for result, array in zip(results, out, strict=True))
    np.testing.assert_array_equal(out, [x + y, x * y])


def test_wrong_inputs_and_outputs(host_plan: Plan, pair: Plan, golden: Golden) -> None:
    x = np.ones((1, 3), np.float32)
    fits = np.zeros_like(x)
    golden.refusals("calls: outputs", {
        case: lambda out=out: pair(x, x, out=out) for case, out in {
            "shape": (fits, np.zeros((1, 4), np.float32)), "dtype": (fits, np.zeros((1, 3))),
            "a list": (fits, [0.0, 0.0, 0.0]), "one array": fits}.items()})
    assert not fits.any()
    golden.refusals("calls: inputs", {
        **{case: lambda inputs=inputs: host_plan(*inputs) for case, inputs in {
            "none": (), "two": (images(1), images(1)), "no batch": (images(1)[0],),
            "two channels": (images(1)[:, :2],), "a scalar": (np.float32(1),),
            "float64": (images(1).astype(np.float64),), "int32": (images(1).astype(np.int32),),
            "a list": (images(1).tolist(),), "a ragged list": ([[1.0], [1.0, 2.0]],),
            "None": (None,)}.items()},
        "two batch sizes": lambda: pair(x, np.zeros((2, 3), np.float32))})


def test_a_wrong_input_leaves_the_plan_working(plan: Plan) -> None:
    x = images(2)
    with pytest.raises(InputError):
        plan(x.astype(np.int32))
    assert_close(plan(x), expected(x))


def test_a_closed_plan_refuses_calls(quick_device: Device, tmp_path: Path) -> None:
    x = images(2)
    with compiled(small(), quick_device, tmp_path) as plan:
        context = plan.context(2)
        call = plan.bind(x)
    for use in (lambda: plan(x), lambda: plan(x[:0]), lambda: plan.bind(x),
                lambda: plan.context(1), lambda: plan.profile(2)):
        with pytest.raises(InputError, match="test: the plan is closed; make another plan"):
            use()
    assert_close(call(), expected(x))
    assert_close(context.run({"x": x})["y"], expected(x))
    assert plan.report(2).rows


def test_a_tensor_that_requires_a_gradient_is_told_so(plan: Plan) -> None:
    class Tensor(ForeignArray):
        requires_grad = True

    with pytest.raises(InputError, match=r"requires a gradient.*pass x.detach\(\)"):
        plan(Tensor(images(2)))


def test_arrays_of_other_libraries_in_host_memory(plan: Plan) -> None:
    x = images(2)
    assert_close(plan(ForeignArray(x)), expected(x))
    with pytest.raises(InputError, match="'x' has dtype float64"):
        plan(ForeignArray(x.astype(np.float64)))


def test_contexts_in_several_threads(quick_device: Device, tmp_path: Path) -> None:
    """Each thread has a context, and all threads share the plan's own contexts too. This is not
    tested with Oclgrind, which supports one thread only."""
    plan = compiled(small(), quick_device, tmp_path)
    batches = (1, 2, 3, 5)
    inputs = [images(batch, seed) for seed, batch in enumerate(batches)]
    references = [expected(x) for x in inputs]

    def work(index: int) -> None:
        context = plan.context(batches[index])
        for _ in range(20):
            assert_close(context.run({"x": inputs[index]})["y"], references[index])
            assert_close(plan(inputs[index]), references[index])

    in_threads(work, range(len(batches)))


def test_one_context_serves_threads_one_by_one(quick_device: Device, tmp_path: Path) -> None:
    context = compiled(small(), quick_device, tmp_path).context(2)
    inputs = [images(2, seed) for seed in range(4)]
    references = [expected(x) for x in inputs]

    def work(index: int) -> None:
        for _ in range(10):
            assert_close(context.run({"x": inputs[index]})["y"], references[index])

    in_threads(work, range(len(inputs)))


def test_a_context_repeats_itself(plan: Plan) -> None:
    """The first executions prepare, capture and replay, and all must agree to the bit."""
    context = plan.context(3)
    assert context.program.batch == 3
    x = images(3)
    first = context.run({"x": x})["y"]
    assert_close(first, expected(x))
    for _ in range(4):
        np.testing.assert_array_equal(context.run({"x": x})["y"], first)


def test_an_execution_leaves_its_inputs_for_the_next(plan: Plan) -> None:
    context = plan.context(2)
    first = context.run({"x": images(2)})["y"]
    result = context.buffers.of(context.program.outputs["y"])
    for _ in range(3):
        plan.device.write(result, np.zeros_like(first))
        context.execute()
        again = np.empty_like(first)
        plan.device.read(result, again)
        np.testing.assert_array_equal(again, first)


def test_compile_takes_graphs_paths_and_names_of_devices(tmp_path: Path) -> None:
    plan = compiled(small(), find("host"), tmp_path)
    x = images(2)
    for model_, device in ((gossamer.load(tmp_path / "model.onnx"), "host"),
                           (tmp_path / "model.onnx", find("host"))):
        np.testing.assert_array_equal(gossamer.compile(model_, device)(x), plan(x))
    with pytest.raises(DeviceError, match="opencl:99"):
        gossamer.compile(tmp_path / "model.onnx", "opencl:99")


def test_a_plan_says_how_it_goes_to_another_process(plan: Plan) -> None:
    for carry in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"plan.save\(FILE\) and Plan.load\(FILE\)"):
            carry(plan)


@pytest.mark.parametrize("seconds", [1e-300, 1, np.float32(2.5), 1e300])
def test_any_other_budget_is_allowed(seconds: float) -> None:
    assert Policy("quick", budget_s=seconds).budget_s == seconds


def test_options_that_are_refused(golden: Golden) -> None:
    options: list[dict[str, Any]] = [
        {"effort": "quick", name: value} for name in ("budget_s", "tolerance", "sparse_threshold")
        for value in ("10", [0.5], 1j)]
    options += [{"effort": "quick", "budget_s": seconds}
                for seconds in (0, -1.0, math.nan, math.inf, -math.inf, np.float32(0))]
    options += [{"budget_s": 1}, {"force": {"a": "cudn"}}]
    golden.refusals("policies", {str(each): partial(Policy, **each) for each in options})
