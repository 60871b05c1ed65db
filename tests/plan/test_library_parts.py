"""Parts that ONNX Runtime computes: which layers, with which numbers, and how they are grouped."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import onnx
import pytest
from onnx import helper

import gossamer
from gossamer.device.registry import find
from gossamer.errors import InputError, UnsupportedError
from gossamer.measure import Timing
from gossamer.ops.onnx_part import session
from gossamer.ops.part.host import OnnxRuntime, _refusal
from gossamer.plan.choose import assigner, refine, table
from gossamer.plan.choose.assigner import allowed, free
from gossamer.plan.choose.outcomes import EndToEnd
from gossamer.plan.fusion import WHOLE, _clusters, find_parts
from gossamer.plan.plan import Plan
from gossamer.plan.program import Layer, Program
from gossamer.tensor import bfloat16_bits, of_bfloat16_bits
from tests.model.onnx_models import model, runtime, weights
from tests.plan.caches import empty_cache
from tests.plan.small import assert_close, images, small
from tests.processes import python

HOST = find("host")
NAMES = ["first", "second", "pool", "mean", "classes"]
pytestmark = pytest.mark.library_parts


@pytest.fixture(autouse=True)
def cache() -> Iterator[None]:
    with empty_cache():
        yield


def own(proto: onnx.ModelProto) -> Plan:
    """Returns the plan of gossamer's own algorithms."""
    return gossamer.compile(proto, "host", vendors=False)


def without_weights() -> onnx.ModelProto:
    """Returns the small network with a convolution of which no weight is left."""
    proto = onnx.ModelProto()
    proto.CopyFrom(small())
    for tensor in proto.graph.initializer:
        if tensor.name == "w1":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.zeros((8, 8, 3, 3), np.float32), "w1"))
    return proto


def steps(plan: Plan, batch: int = 1) -> list[tuple[str, str]]:
    return [(step.layer.name, step.algorithm.name) for step in plan.program(batch).steps]


def test_a_dense_network_is_one_part() -> None:
    plan = gossamer.compile(small(), "host")
    for batch in (1, 3):
        assert_close(plan(images(batch)), own(small())(images(batch)))
        assert steps(plan, batch) == [("whole network", "onnxruntime")]
    assert_close(plan.bind(images(2))(), plan(images(2)))
    (streamed,) = plan.stream([images(2)])
    assert_close(streamed, plan(images(2)))


def test_rewrites_at_which_the_library_fails_are_left_out() -> None:
    x = np.random.default_rng(0).standard_normal((3, 8))
    norm = model([helper.make_node("LayerNormalization", ["x", "a", "b"], ["y"])],
                 {"x": (3, 8), "a": [8], "b": [8]}, {"y": 2},
                 types=dict.fromkeys("xaby", onnx.TensorProto.FLOAT16))
    clip = model([helper.make_node("Relu", ["x"], ["r"]),
                  helper.make_node("Clip", ["r", "low", "high"], ["y"])],
                 {"x": (3, 8)}, {"y": 2}, {"low": np.float64(-1), "high": np.float64(0.5)},
                 types=dict.fromkeys("xy", onnx.TensorProto.DOUBLE))
    np.testing.assert_array_equal(gossamer.compile(clip, "host")(x), np.clip(x, 0, 0.5))
    x = (x - x.mean(1)[:, None]).astype(np.float16)
    np.testing.assert_allclose(gossamer.compile(norm, "host")(x, *np.float16([[1] * 8, [0] * 8])),
                               x / x.std(1)[:, None], rtol=5e-3, atol=5e-3)


def test_what_the_library_refuses_is_computed_by_own_layers(
        monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(content: bytes, *arguments: Any, **more: Any) -> session.Session:
        if b"MaxPool" in content:
            raise UnsupportedError("is refused")
        return session.Session(content, *arguments, **more)

    monkeypatch.setattr("gossamer.ops.part.host._refusal", _refusal.__wrapped__)
    monkeypatch.setattr("gossamer.ops.part.host.Session", refused)
    plan = gossamer.compile(small(), "host")
    assert_close(plan(images(2)), own(small())(images(2)))
    assert dict(steps(plan))["pool"] != "onnxruntime"


def test_images_in_bfloat16_are_no_integers() -> None:
    """Memory holds bfloat16 as bits in uint16, which ONNX Runtime would take for integers."""
    name = small().graph.input[0].name
    formats = {name: gossamer.InputFormat("bfloat16")}
    x = images(2)
    bits = bfloat16_bits(x)
    assert_close(gossamer.compile(small(), "host", inputs=formats)(bits),
                 own(small())(of_bfloat16_bits(bits)))


def test_the_table_of_layers_is_kept() -> None:
    plan = gossamer.compile(small(), "host")
    plan(images(1))
    report = plan.profile()
    assert [row["layer"] for row in report.rows] == NAMES
    assert {(row["algorithm"], row["config"]) for row in report.rows} == {
        ("onnxruntime", "whole network, threads=all")}
    assert sum(row["share"] for row in report.rows) == pytest.approx(1)
    assert report.notes[0] == "host ran all 5 layers"
    assert report.notes[1] == (
        "onnxruntime, whole network: ONNX Runtime computes 5 layers in one call; each call's "
        "time is divided among its layers as in the library's profile")
    assert report.shares.keys() <= {"ONNX Runtime", "between layers"}
    assert "whole network" in str(report) and json.dumps(report.rows)


@pytest.mark.parametrize("vendors", [True, False])
@pytest.mark.parametrize("threads", [1, 2, "all"])
def test_threads_are_those_of_the_plan(threads: int | str, vendors: bool, tmp_path: Path) -> None:
    proto = model([helper.make_node("Conv", ["x", "w"], ["y"], "wide")],
                  {"x": ("N", 64, 18, 18)}, {"y": 4}, {"w": weights(64, 64, 3, 3)})
    x = np.random.default_rng(0).standard_normal((2, 64, 18, 18)).astype(np.float32)

    def checked(plan: Plan, wanted: int | str) -> None:
        (step,) = plan.program(2).steps
        assert f"threads={wanted}" in step.config_text
        assert_close(plan(x), runtime(proto, {"x": x})[0])

    plan = gossamer.compile(proto, "host", threads=threads, vendors=vendors)
    checked(plan, threads)
    plan.save(tmp_path / "some.plan")
    checked(Plan.load(tmp_path / "some.plan"), threads)
    for other in (1, 3, "all"):
        checked(Plan.load(tmp_path / "some.plan", threads=other), other)


def test_contexts_share_a_session() -> None:
    plan = gossamer.compile(small(), "host")
    contexts = [plan.context(1) for _ in range(2)]
    first, second = (context.steps.states[0].data.session for context in contexts)
    assert first is second


def test_own_algorithms_alone_where_libraries_are_left_out() -> None:
    assert {name for _, name in steps(own(small()))} <= {"numpy", "host_im2col", "host_gemm"}


def test_an_algorithm_that_is_forced_splits_the_network() -> None:
    plan = gossamer.compile(small(), "host", force={"second": "host_im2col"})
    assert steps(plan) == [("first to first, 1 layer", "onnxruntime"), ("second", "host_im2col"),
                           ("pool to classes, 3 layers", "onnxruntime")]
    assert_close(plan(images(2)), own(small())(images(2)))


def test_layers_without_weights_are_not_left_to_the_library() -> None:
    plan = gossamer.compile(without_weights(), "host")
    assert steps(plan)[1] == steps(own(without_weights()))[1] != ("second", "host_im2col")
    assert len(steps(plan)) == 3
    assert_close(plan(images(2)), own(without_weights())(images(2)))


def branches() -> onnx.ModelProto:
    """Returns a network with a branch beside its middle."""
    node = helper.make_node
    return model(
        [node("Conv", ["x", "w0"], ["a"], "first"),
         node("Conv", ["a", "w1"], ["b"], "left", pads=[1, 1, 1, 1]),
         node("Conv", ["a", "w2"], ["c"], "right"),
         node("Concat", ["b", "c"], ["d"], "join", axis=1),
         node("Conv", ["d", "w3"], ["y"], "last")],
        {"x": ["N", 3, 6, 5]}, {"y": 4},
        {"w0": weights(4, 3, 3, 3), "w1": weights(4, 4, 3, 3), "w2": weights(4, 4, 1, 1, seed=1),
         "w3": weights(2, 8, 1, 1)})


def test_no_path_leads_from_a_part_back_to_it() -> None:
    plan = gossamer.compile(branches(), "host", force={"left": "host_im2col"})
    assert {name for name, _ in steps(plan)} == {
        "first to right, 2 layers", "left", "join to last, 2 layers"}
    assert_close(plan(images(2)), own(branches())(images(2)))


@pytest.mark.parametrize(("op", "size", "more"), [
    ("Relu", 8, 0), ("Relu", 2**17, 1), ("Sinh", 8, 1)])
def test_many_branches_have_the_threads_of_one(op: str, size: int, more: int) -> None:
    names = [f"y{number}" for number in range(40)]
    proto = model([helper.make_node(op, ["x"], [name], name) for name in names],
                  {"x": (1, size)}, dict.fromkeys(names, 2))
    x = np.linspace(-1, 1, size, dtype=np.float32)[None]
    wanted = np.maximum(x, 0) if op == "Relu" else np.sinh(x)
    gossamer.compile(proto, "host")(x)  # what the process starts once
    before = len(os.listdir("/proc/self/task"))
    plan = gossamer.compile(proto, "host")
    for result in plan(x):
        assert_close(result, wanted)
    started = len(os.listdir("/proc/self/task")) - before
    assert len(plan.program(1).steps) == 1 and started <= more * ((os.cpu_count() or 1) - 1)


def layers() -> list[Layer]:
    return Plan(gossamer.load(small()), HOST).layers(1)


def test_parts_are_maximal_and_know_what_others_read() -> None:
    (whole,) = find_parts(layers(), ["y"], HOST)
    assert (whole.name, whole.problem.whole) == ("whole network", True)
    assert [layer.name for layer in whole.members] == [*NAMES[:4], "flat", "classes"]
    first, rest = find_parts(layers(), ["y"], HOST, ["second"])
    assert (first.covers, rest.covers) == (("first",), ("pool", "mean", "flat", "classes"))
    assert (first.inputs, rest.outputs) == (["x"], ["y"])
    assert first.problem is not None and first.problem.whole is False


def test_reshapes_are_within_parts() -> None:
    graph = model([helper.make_node("Reshape", ["x", "shape"], ["a"], "reshape"),
                   helper.make_node("Softmax", ["a"], ["b"], "softmax", axis=-1),
                   helper.make_node("Reshape", ["b", "back"], ["y"], "back")],
                  {"x": ["N", 6]}, {"y": 2},
                  {"shape": np.array([0, 2, 3]), "back": np.array([0, 6])})
    plan = gossamer.compile(graph, "host")
    x = weights(3, 6)
    assert_close(plan(x), own(graph)(x))
    assert steps(plan, 3) == [("whole network", "onnxruntime")]


def test_a_network_may_have_other_layers_at_another_batch_size() -> None:
    """At batch 1 the repetition is no layer, so that the layers after it have other places within
    the part than at batch 2."""
    nodes = [helper.make_node("Shape", ["x"], ["batch"], "batch", end=1),
             helper.make_node("Concat", ["one", "batch"], ["repeats"], "repeats", axis=0),
             helper.make_node("Tile", ["x", "repeats"], ["wide"], "repeat"),
             helper.make_node("ReduceMean", ["wide"], ["mean"], "mean", axes=[1]),
             helper.make_node("Concat", ["x", "mean"], ["joined"], "join", axis=1),
             helper.make_node("Gemm", ["joined", "w"], ["a"], "first"),
             helper.make_node("Gemm", ["a", "v"], ["y"], "second")]
    graph = model(nodes, {"x": ["N", 6]}, {"y": 2}, {
        "one": np.array([1]), "w": weights(7, 8), "v": weights(8, 8)}, 17)
    plan = gossamer.compile(graph, "host")
    assert steps(plan, 1) == steps(plan, 2) == [("whole network", "onnxruntime")]
    names = [[layer.name for layer in plan.program(batch).steps[0].layer.members]
             for batch in (1, 2)]
    assert names[0] != names[1]
    for batch in (2, 1, 3, 2):
        x = weights(batch, 6)
        assert_close(plan(x), runtime(graph, {"x": x})[0])


def test_a_saved_plan_computes_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "small.plan"
    plan = gossamer.compile(small(), "host", force={"second": "host_im2col"})
    y = plan(images(1))
    plan.save(path)
    loaded = Plan.load(path)
    np.testing.assert_array_equal(loaded(images(1)), y)
    assert steps(loaded) == steps(plan)
    assert_close(loaded(images(2)), plan(images(2)))
    monkeypatch.setattr(OnnxRuntime, "version", lambda self, device: "0.1")
    with pytest.raises(InputError, match=r"ONNX Runtime.*0\.1.*gossamer compile"):
        Plan.load(path)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_inputs_in_another_layout_are_measured(dtype: str) -> None:
    x = (8 * images(2)).astype(dtype)
    plan = gossamer.compile(small(), "host", effort="quick",
                            inputs=gossamer.InputFormat(dtype, "NHWC"))
    assert_close(plan(np.ascontiguousarray(x.transpose(0, 2, 3, 1))),
                 own(small())(x.astype(np.float32)))


def test_measured_plans_name_the_library() -> None:
    plan = gossamer.compile(small(), "host", effort="quick")
    assert_close(plan(images(2)), own(small())(images(2)))
    measured = {node.layer.name: node for node in plan.program(2).measured}
    candidates = [each for each in measured["whole network"].candidates if each.is_usable]
    assert candidates and all(each.algorithm.name == "onnxruntime" and each.measured.error <= 1e-5
                              for each in candidates)
    rows = plan.report(2).rows
    assert [row["layer"] for row in rows if row["op"] != "copy"] == NAMES
    # each of gossamer's own algorithms that was measured for a layer is named beside the library
    for row in rows:
        if row["algorithm"] == "onnxruntime":
            own_names = {each.algorithm.name for each in measured[row["layer"]].candidates}
            assert own_names and own_names <= row["rejected"].keys()


def test_why_zeros_are_not_skipped_within_a_part(effort: str | None) -> None:
    proto = onnx.ModelProto()
    proto.CopyFrom(small())
    for tensor in proto.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor).copy()
        if values.ndim == 4:
            values.reshape(-1)[::2] = 0
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    plan = gossamer.compile(proto, "host", effort=effort)
    plan.program(1)
    lines = [line for line in plan.report(1).zeros_lines if "convolutions" in line]
    assert not [line for line in lines if "no algorithm skips them" in line]
    if effort is None:
        assert all("set an effort, or run `gossamer compile`" in line for line in lines)
    rows = plan.report(1).rows
    assert lines or any(row["skips_zeros"] for row in rows)
    assert effort is None or all(row["best_dense_us"] <= row["median_us"] for row in rows
                                 if row["algorithm"] == "onnxruntime" and row["zeros_reason"])


def test_thin_layers_are_tried_without_the_library() -> None:
    plan = gossamer.compile(without_weights(), "host", effort="quick")
    parts = {node.layer.name: node for node in plan.program(1).measured if node.layer.members}
    assert parts.keys() == {"whole network", "first to first, 1 layer",
                            "pool to classes, 3 layers"}


@pytest.mark.parametrize("is_small", [True, False])
def test_generated_code_computes_small_dense_networks(monkeypatch: pytest.MonkeyPatch,
                                                      is_small: bool) -> None:
    pytest.importorskip("llvmlite")
    if not is_small:
        monkeypatch.setattr(table, "_FEW_FLOPS", 1)
    plan = gossamer.compile(small(), "host", effort="quick")
    layers = {node.layer.name: node for node in plan.program(1).measured}
    for layer, name in (("first", "host_indirect"), ("mean", "host_direct")):
        reason = layers[layer].reasons.get(name)
        assert reason is None if is_small else "is not small" in (reason or "")
    assert_close(plan(images(1)), own(small())(images(1)))


def time_plans(monkeypatch: pytest.MonkeyPatch, parts_us: float) -> None:
    """Makes the network as one part take 100 us, and every plan of parts another time. By the times
    of its layers alone a network is cut."""
    def timed(name: str, programs: Sequence[Program], *_: object, **__: object) -> list[EndToEnd]:
        times = [100.0 if len(program.steps) == 1 else parts_us for program in programs]
        return [EndToEnd(Timing(us, 0.9 * us, 1.1 * us, 9)) for us in times]

    monkeypatch.setattr(refine, "end_to_end", timed)
    monkeypatch.setattr(assigner, "allowed", lambda restriction, node: (
        [] if restriction is free and node.layer.name == WHOLE
        else allowed(restriction, node)))


def is_whole(proto: onnx.ModelProto, effort: str) -> bool:
    plan = gossamer.compile(proto, "host", effort=effort)
    return steps(plan) == [("whole network", "onnxruntime")]


@pytest.mark.parametrize("effort", ["quick", "max"])
@pytest.mark.parametrize(("parts_us", "expected"), [(95.0, True), (70.0, False)])
def test_parts_have_to_be_clearly_faster_than_the_whole(
        monkeypatch: pytest.MonkeyPatch, effort: str, parts_us: float, expected: bool) -> None:
    time_plans(monkeypatch, parts_us)
    assert is_whole(small(), effort) is expected


def test_one_library_wherever_it_can() -> None:
    for effort in (None, "quick"):
        plan = gossamer.compile(small(), "host", effort=effort, only="onnxruntime")
        assert steps(plan) == [("whole network", "onnxruntime")]
        plan = gossamer.compile(small(), "host", effort=effort, only="numpy")
        assert ("whole network", "onnxruntime") not in steps(plan)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_has_the_plan() -> None:
    code = """
import os, numpy as np, gossamer
from onnx import helper
from tests.model.onnx_models import model, runtime, weights
plan = gossamer.compile(
    model([helper.make_node("Conv", ["x", "w"], ["y"])], {"x": ["N", 16, 96, 96]}, {"y": 4},
          {"w": weights(64, 16, 3, 3)}), "host", threads="all")
x = weights(4, 16, 96, 96)
y = plan(x)
child = os.fork()
if not child:
    os._exit(0 if np.allclose(plan(x), y) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    python(code, timeout=60)


@pytest.mark.slow
def test_without_the_library_all_is_as_before(tmp_path: Path) -> None:
    onnx.save(small(), tmp_path / "small.onnx")
    np.save(tmp_path / "x.npy", images(2))
    code = f"""
import sys
sys.modules["onnxruntime"] = None
import numpy as np, gossamer
for effort in (None, "quick"):
    plan = gossamer.compile({str(tmp_path / "small.onnx")!r}, "host", effort=effort)
    np.save({str(tmp_path / "y.npy")!r}, plan(np.load({str(tmp_path / "x.npy")!r})))
    assert "onnxruntime" not in {{step.algorithm.name for step in plan.program(2).steps}}
"""
    python(code)
    assert_close(np.load(tmp_path / "y.npy"), own(small())(images(2)))


def test_a_network_of_signs_keeps_them_exact() -> None:
    node = helper.make_node
    graph = model([node("Sign", ["x"], ["a"], "sign"), node("Conv", ["a", "w"], ["b"], "bits"),
                   node("Relu", ["b"], ["y"], "relu")], {"x": ["N", 64, 5, 5]}, {"y": 4},
                  {"w": np.sign(weights(32, 64, 3, 3))})
    x = weights(1, 64, 5, 5)
    for effort in (None, "quick"):
        plan = gossamer.compile(graph, "host", effort=effort)
        np.testing.assert_array_equal(plan(x), own(graph)(x))


def test_scales_stay_behind_sums_of_integers() -> None:
    """A tenth of the sums is rounded to even, where a scale within the weights would round the sums
    before."""
    x = np.random.default_rng(0).integers(0, 256, (2, 4, 9, 9)).astype(np.uint8)
    w = np.random.default_rng(1).integers(-9, 10, (8, 4, 3, 3)).astype(np.int8)
    one, zero = np.float32(1), np.uint8(0)
    graph = model([helper.make_node("QLinearConv", ["x", "xs", "xz", "w", "one", "wz", "one", "yz"],
                                    ["y"], "layer")],
                  {"x": ["N", 4, 9, 9]}, {"y": 4},
                  {"xs": np.float32(0.1), "xz": zero, "w": w, "one": one, "wz": np.int8(0),
                   "yz": np.uint8(128)},
                  types={"x": onnx.TensorProto.UINT8, "y": onnx.TensorProto.UINT8})
    plan = gossamer.compile(graph, "host")
    assert {name for _, name in steps(plan)} == {"onnxruntime"}
    np.testing.assert_array_equal(plan(x), own(graph)(x))
    np.testing.assert_array_equal(plan(x), runtime(graph, {"x": x})[0])


@dataclass(frozen=True)
class _Layer:
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def chain(*texts: str) -> list[_Layer]:
    """Returns layers, each given as "name: inputs", which write the value of their own name."""
    return [_Layer(name, tuple(inputs.split()), (name,))
            for name, _, inputs in (text.partition(": ") for text in texts)]


def groups(layers: list[_Layer], left_out: Collection[str] = ()) -> list[list[str]]:
    """Returns the names of the layers of each part."""
    return sorted([layers[index].name for index in group]
                  for group in _clusters(layers, left_out).groups())  # type: ignore[arg-type]


def components(names: Iterable[str], layers: Iterable[_Layer]) -> list[list[str]]:
    """Returns some of the layers, in sets that the values between these layers connect."""
    sets = [{name} for name in sorted(names)]
    for layer in layers:
        for name in layer.inputs:
            touched = [one for one in sets if layer.name in one or name in one]
            if sum(map(len, touched)) > 1 and {layer.name, name} <= set().union(*touched):
                sets = [one for one in sets if one not in touched] + [set().union(*touched)]
    return sorted(map(sorted, sets))


@pytest.mark.parametrize(("layers", "expected"), [
    (chain("a: x", "b: a", "c: b"), [["a", "b", "c"]]),
    (chain("a: x", "b: y", "c: a", "d: b"), [["a", "c"], ["b", "d"]]),
    # an input of the network that both read connects no layers
    (chain("a: x", "b: x"), [["a"], ["b"]]),
    (chain("a: x", "b: x", "c: a b"), [["a", "b", "c"]]),
    (chain("a: x", "b: a", "c: a"), [["a", "b", "c"]]),
    (chain("a: x"), [["a"]]), ([], [])])
def test_a_network_is_one_part_where_it_is_connected(layers: list[_Layer],
                                                     expected: list[list[str]]) -> None:
    assert groups(layers) == expected


@pytest.mark.parametrize(("layers", "left_out", "expected"), [
    (chain("a: x", "b: a", "c: a b"), ["b"], [["a"], ["c"]]),
    (chain("a: x", "b: a", "c: b", "d: c", "e: a d"), ["b", "c", "d"], [["a"], ["e"]]),
    # b leads to d, and d and e are one part, from which f leads to g
    (chain("a: x", "b: a", "c: y", "d: c b", "e: c", "f: e", "g: a f"), ["b", "f"],
     [["a"], ["c", "d", "e"], ["g"]]),
    (chain("a: x", "b: y", "c: a b"), ["b"], [["a", "c"]])])
def test_no_path_through_other_layers_leads_from_a_part_back_to_it(
        layers: list[_Layer], left_out: list[str], expected: list[list[str]]) -> None:
    assert groups(layers, left_out) == expected


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=100)
def test_parts_are_connected_and_can_be_computed_one_after_another(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 8), "layers")
    layers = [_Layer(f"{index}", tuple(data.draw(st.lists(
        st.sampled_from(["x", "y", *map(str, range(index))]), min_size=1, max_size=3, unique=True),
        "inputs")), (f"{index}",)) for index in range(count)]
    names = [layer.name for layer in layers]
    assert groups(layers) == components(names, layers)
    left_out = data.draw(st.sets(st.sampled_from(names)), "left out")
    found = groups(layers, left_out)
    assert sorted(name for group in found for name in group) == sorted({*names} - left_out)
    part_of = {name: min(group) for group in found for name in group}
    for group in found:
        assert components(group, layers) == [group]
    # parts and layers that are left out are computed as soon as all that they read is there
    waiting = {part_of.get(name, name) for name in names}
    reads = {one: {part_of.get(name, name) for layer in layers
                   if part_of.get(layer.name, layer.name) == one
                   for name in layer.inputs if name in names} - {one} for one in waiting}
    while ready := {one for one in waiting if not reads[one] & waiting}:
        waiting -= ready
    assert not waiting
