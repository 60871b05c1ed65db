from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.device.host import host_array
from gossamer.device.registry import find
from gossamer.errors import DeviceError
from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.ops.algorithm import PRECISIONS, Epilogue, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.vendor import cudnn, cudnn_graph
from gossamer.ops.conv2d.vendor.cudnn import Cudnn
from gossamer.ops.conv2d.vendor.cudnn_graph import (
    OPERAND,
    WEIGHT,
    CudnnForm,
    CudnnOffer,
    ExecutionPlan,
    Pointwise,
    X,
    pointwise,
)
from gossamer.ops.vendor import libraries
from gossamer.ops.vendor.libraries import CUDNN
from gossamer.ops.weights import Weights
from gossamer.tensor import pack
from tests.ops.conv2d.test_conv2d import BIAS_CLIP, BIAS_RESIDUAL_RELU
from tests.ops.fused.blocks import BIAS_RELU, BIAS_SILU
from tests.ops.harness import check, random_inputs, random_weights

SCALE_LEAKY_RESIDUAL = Epilogue(
    Expression(3, (ExpressionStep("mul", (2, 0)), ExpressionStep("leaky_relu", (3,), (0.1,)),
                   ExpressionStep("add", (1, 4)))),
    ("tensor", "channel"))
FUSED = (Epilogue(), BIAS_RELU, BIAS_CLIP, BIAS_RESIDUAL_RELU, BIAS_SILU, SCALE_LEAKY_RESIDUAL,
         Epilogue(apply("tanh")), Epilogue(apply("sigmoid")), Epilogue(apply("clip", 0, math.inf)))

_METHODS: dict[str, Any] = {
    "add": np.add, "mul": np.multiply, "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "relu": lambda x, upper_clip=math.inf: np.clip(x, 0, upper_clip),
    "leaky_relu": lambda x, negative_slope: np.where(x < 0, negative_slope * x, x),
}
"""Functions that the nodes are assumed to compute; the tests on a GPU check cuDNN itself."""


class TestPointwise:
    @pytest.mark.parametrize("epilogue", FUSED, ids=lambda epilogue: epilogue.operands)
    def test_nodes_compute_the_expression(self, epilogue: Epilogue) -> None:
        rng = np.random.default_rng(0)
        result = 4 * rng.standard_normal((2, 3, 4, 5))
        shapes = {"channel": (1, 3, 1, 1), "tensor": result.shape}
        operands = [rng.standard_normal(shapes[kind]) for kind in epilogue.operands]
        values = [result, *operands]
        nodes = pointwise(epilogue)
        assert nodes is not None
        for node in nodes:
            arguments = [values[index] for index in node.arguments]
            assert arguments[0].shape == result.shape, "cuDNN broadcasts the second argument only"
            values.append(_METHODS[node.method](*arguments, **dict(node.constants)))
        (expected,) = epilogue.expression.evaluate(result, *operands)
        np.testing.assert_allclose(values[-1] if nodes else result, expected, rtol=1e-12)

    def test_residual_is_added_before_the_bias(self) -> None:
        assert pointwise(BIAS_RESIDUAL_RELU) == (
            Pointwise("add", (0, 2)), Pointwise("add", (3, 1)), Pointwise("relu", (4,)))

    @pytest.mark.parametrize("epilogue", [
        Epilogue(apply("hard_sigmoid", 0.2, 0.5)),
        Epilogue(apply("clip", -1.0, 1.0)),
        Epilogue(apply("clip", 0.0, math.nan)),
        Epilogue(Expression(2, (ExpressionStep("sub", (1, 0)),)), ("channel",)),
        Epilogue(Expression(2, (ExpressionStep("relu", (0,)),)), ("tensor",)),
        Epilogue(Expression(1, (ExpressionStep("relu", (0,)), ExpressionStep("tanh", (1,))), (1,))),
        Epilogue(Expression(2, (ExpressionStep("sigmoid", (1,)), ExpressionStep("mul", (0, 2)))),
                 ("channel",)),
        Epilogue(Expression(1, (ExpressionStep("constant", (), (0.5,)),
                                ExpressionStep("add", (0, 1))))),
    ], ids=["no node", "clip below 0", "clip at NaN", "no node for two", "operand unused",
            "last step unused", "function of a channel operand", "constant"])
    def test_epilogues_that_cudnn_has_no_nodes_for(self, epilogue: Epilogue) -> None:
        assert pointwise(epilogue) is None


PROBLEM = Conv2dProblem(2, 4, 8, 8, 6, (3, 3), epilogue=BIAS_RESIDUAL_RELU)


def offering(monkeypatch: pytest.MonkeyPatch, counts: dict[tuple[str, str, bool], int]) -> None:
    """Replaces cuDNN by one that offers `counts` plans by precision, layout and whether it is
    fused, and four by default."""
    def offered(device: Device, problem: Conv2dProblem, form: CudnnForm) -> CudnnOffer:
        count = counts.get((form.precision, form.layout, form.fused), 4)
        plans = tuple(ExecutionPlan(2 * rank, f"eng{rank}", 100 * rank) for rank in range(count))
        return CudnnOffer(plans, "" if count else "no engine at all")

    monkeypatch.setattr(cudnn, "offered", offered)


def groups(variants: Iterator[Variant]) -> list[tuple[str, list[Variant]]]:
    """Returns consecutive variants of one config together, as the tuner does."""
    return [(key, list(group))
            for key, group in itertools.groupby(variants, lambda v: v.config_text)]


class TestVariants:
    def test_two_configs_see_the_best_plan_of_everything(
            self, monkeypatch: pytest.MonkeyPatch) -> None:
        offering(monkeypatch, {})
        first, second, *others = groups(Cudnn().variants(PROBLEM, find("host")))
        everything = {(p, layout) for p in PRECISIONS for layout in ("NHWC", "NCHW")}
        for label, variants in (first, second):
            assert label.startswith("rank=0 ")
            assert {(v.precision, v.inputs[0].layout) for v in variants} == everything
        assert [label for label, _ in others] == [
            f"rank={rank} epilogue={form}" for form in ("fused", "separate") for rank in (1, 2, 3)]

    def test_specs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        offering(monkeypatch, {})
        for variant in Cudnn().variants(PROBLEM, find("host")):
            (y,) = variant.outputs
            dtype = "float16" if variant.precision == "fp16" else "float32"
            assert (y.dtype, y.shape) == (dtype, PROBLEM.outputs[0].shape)
            assert [(s.dtype, s.layout) for s in variant.inputs] == [(dtype, y.layout)] * 2
            assert variant.inputs[1] == y
            assert variant.workspace == 100 * variant["rank"]

    def test_where_nothing_is_offered_there_is_no_variant(
            self, monkeypatch: pytest.MonkeyPatch) -> None:
        offering(monkeypatch, {("tf32", "NCHW", True): 0, ("fp16", "NHWC", False): 1})
        forms = [(v.precision, v.outputs[0].layout, v["epilogue"])
                 for v in Cudnn().variants(PROBLEM, find("host"))]
        assert forms.count(("tf32", "NCHW", "fused")) == 0
        assert forms.count(("fp16", "NHWC", "separate")) == 1
        assert forms.count(("fp16", "NHWC", "fused")) == 4

    def test_the_first_is_strict_float32_where_there_is_one(
            self, monkeypatch: pytest.MonkeyPatch) -> None:
        offering(monkeypatch, {("fp32", layout, True): 0 for layout in ("NHWC", "NCHW")})
        first = next(Cudnn().variants(PROBLEM, find("host")))
        assert (first.precision, first["epilogue"]) == ("fp32", "separate")

    @pytest.mark.parametrize(("epilogue", "forms"), [
        (Epilogue(), {"none"}), (BIAS_RELU, {"fused", "separate"}),
        (Epilogue(apply("hard_sigmoid", 0.2, 0.5)), {"separate"})],
        ids=["none", "fusable", "not fusable"])
    def test_ways_to_apply_the_epilogue(self, monkeypatch: pytest.MonkeyPatch,
                                        epilogue: Epilogue, forms: set[str]) -> None:
        offering(monkeypatch, {})
        problem = Conv2dProblem(1, 4, 5, 5, 4, (1, 1), epilogue=epilogue)
        assert {v["epilogue"] for v in Cudnn().variants(problem, find("host"))} == forms


class Described:
    """A GPU with so much memory, of which nothing is asked but its description."""

    name, description, driver = "cuda:0", "a GPU", "1"

    def __init__(self, memory_bytes: int) -> None:
        self.limits = SimpleNamespace(memory_bytes=memory_bytes)


FORMS = tuple(CudnnForm(precision, layout, fused) for precision in ("fp16", "fp32")
              for fused in (True, False) for layout in ("NHWC", "NCHW"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> list[int]:
    """The workspace that is allowed at each question to a cuDNN that offers a plan for fused forms
    and has no engine for others."""
    asked: list[int] = []

    def answer(library: Any, problem: Conv2dProblem, form: CudnnForm, most: int) -> CudnnOffer:
        asked.append(most)
        return CudnnOffer((ExecutionPlan(2, "eng1", 300),), "") if form.fused else CudnnOffer(
            (), "it has no engine for such a graph")

    library = SimpleNamespace(version="9.1", api=SimpleNamespace(__version__="1.32"))
    monkeypatch.setattr(cudnn, "unavailable", lambda name, device: None)
    monkeypatch.setattr(cudnn_graph, "library_on", lambda name, device: library)
    monkeypatch.setattr(cudnn_graph, "_answer", answer)
    return asked


def test_answers_are_kept_for_other_processes(asked: list[int]) -> None:
    """A device with less memory gets an answer of its own."""
    for memory in (2**20, 2**20, 2**21, 2**21):
        device: Any = Described(memory)
        for form in FORMS:
            offer = cudnn_graph.offered(device, PROBLEM, form)
            assert [plan.workspace for plan in offer.plans] == [300] * form.fused
            assert offer.refusal == ("" if form.fused else "it has no engine for such a graph")
    assert asked == [2**15] * len(FORMS) + [2**16] * len(FORMS)


def test_refusals_that_may_end_are_not_kept(monkeypatch: pytest.MonkeyPatch,
                                            asked: list[int]) -> None:
    answers = [CudnnOffer((), "its engines lack a library that they need at run time (NVRTC)"),
               CudnnOffer((ExecutionPlan(0, "eng0", 0),))]
    monkeypatch.setattr(cudnn_graph, "_answer", lambda *arguments: answers.pop(0))
    for expected in list(answers):
        device: Any = Described(2**20)
        assert cudnn_graph.offered(device, PROBLEM, FORMS[0]) == expected
    assert not answers


def test_other_rules_ask_again(monkeypatch: pytest.MonkeyPatch, asked: list[int]) -> None:
    for rules in ("old", "new"):
        monkeypatch.setattr(cudnn_graph, "source_hash", lambda module, rules=rules: rules)
        device: Any = Described(2**20)
        cudnn_graph.offered(device, PROBLEM, FORMS[0])
    assert len(asked) == 2


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_constants_are_packed_for_the_graph(monkeypatch: pytest.MonkeyPatch, layout: str,
                                            precision: str) -> None:
    offering(monkeypatch, {})
    monkeypatch.setattr(cudnn, "built", lambda device, problem, form, plan: plan.engine)
    host, arrays = find("host"), random_weights(PROBLEM)
    variant = next(v for v in Cudnn().variants(PROBLEM, host)
                   if (v.precision, v.outputs[0].layout) == (precision, layout))
    convolution = Cudnn().prepare(Weights(arrays, host), PROBLEM, variant, host).data
    axes = (0, 2, 3, 1) if layout == "NHWC" else (0, 1, 2, 3)
    expected = arrays["weight"].transpose(axes).astype(variant.inputs[0].dtype)
    weight = host_array(convolution.constants[WEIGHT], expected.shape, expected.dtype)
    np.testing.assert_array_equal(weight, expected)
    np.testing.assert_array_equal(host_array(convolution.constants[OPERAND], (6,), expected.dtype),
                                  arrays["operand0"].astype(expected.dtype))
    assert convolution.inputs == {X: 0, OPERAND + 1: 1}


@pytest.mark.parametrize(("epilogue", "dtype"), [
    (BIAS_RELU, "float16"), (BIAS_RESIDUAL_RELU, "float16"), (BIAS_CLIP, "float32"),
    (BIAS_SILU, "float32"), (SCALE_LEAKY_RESIDUAL, "float32")],
    ids=["relu", "residual", "clip", "swish", "leaky"])
def test_dtype_of_channel_operands(epilogue: Epilogue, dtype: str) -> None:
    assert cudnn_graph.channel_dtype(epilogue, CudnnForm("fp16", "NHWC", True)) == dtype
    for precision in ("fp32", "tf32"):
        assert cudnn_graph.channel_dtype(epilogue, CudnnForm(precision, "NHWC", True)) == "float32"


def test_refusals_are_one_plain_line() -> None:
    no_engine = ("no engine — python or backend — proposed a plan for this graph (the backend "
                 "declined: No valid engine configs for Conv_Relu_\n")
    missing = "Warning: CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING; Reason: nvrtc\n"
    refusal = cudnn_graph._no_engine
    assert refusal(RuntimeError(no_engine)) == "it has no engine for such a graph"
    assert refusal(RuntimeError(no_engine + missing + missing)) == (
        "its engines lack a library that they need at run time (nvrtc)")
    assert refusal(RuntimeError("bad stride\nmore")) == "bad stride"


NEEDS, OTHER = "workspace violation. Requires ", "Deselecting execution plan"


@pytest.mark.parametrize(("answers", "plans", "refusal"), [
    ((f"{NEEDS}900", f"{NEEDS}901", f"{NEEDS}0"), {0: 900, 2: 0}, ""),
    ((f"{NEEDS}901", OTHER), {}, "its engines need too much workspace"),
    ((OTHER, OTHER), {}, "its engines compute in other precisions"),
    ((OTHER, "it is too old\nmore"), {}, "it is too old")])
def test_plans_with_room_for_their_workspace_are_offered(
        monkeypatch: pytest.MonkeyPatch, answers: tuple[str, ...], plans: dict[int, int],
        refusal: str) -> None:
    """Messages name plans by cuDNN's own numbers, here 3, 10 and 17."""
    graph = MagicMock(plans=[SimpleNamespace(cpp_index=number) for number in (3, 10, 17)])
    graph.get_plan_name_at_index.side_effect = "eng{}".format
    graph.check_support.side_effect = RuntimeError("no plan\n" + "\n".join(
        f"Plan at index {7 * place + 3}: {answer}" for place, answer in enumerate(answers)))
    monkeypatch.setattr(cudnn_graph, "_graph", lambda *arguments: graph)
    library: Any = MagicMock(failures=(RuntimeError,))
    assert cudnn_graph._answer(library, PROBLEM, FORMS[0], 900) == CudnnOffer(
        tuple(ExecutionPlan(index, f"eng{index}", need) for index, need in plans.items()), refusal)


def test_pads_and_steps_are_described_by_rows_and_columns() -> None:
    api = MagicMock()
    cudnn_graph._graph(Conv2dProblem(2, 4, 8, 8, 6, (3, 3), (1, 2), (1, 2, 3, 4), (2, 3)),
                       FORMS[0], api, None)
    described = api.pygraph.return_value.conv_fprop.call_args.kwargs
    assert [described[name] for name in (
        "pre_padding", "post_padding", "stride", "dilation")] == [[1, 2], [3, 4], [1, 2], [2, 3]]


INSTALL = "pip install '.[vendor]' in gossamer's checkout"


class TestUnavailable:
    @pytest.fixture(autouse=True)
    def forgotten(self) -> Iterator[None]:
        libraries._frontend.cache_clear()
        yield
        libraries._frontend.cache_clear()

    def loading(self, monkeypatch: pytest.MonkeyPatch, result: object) -> Any:
        def load(name: str) -> object:
            assert name == "cudnn"
            if isinstance(result, Exception):
                raise result
            return result

        monkeypatch.setattr(libraries.importlib, "import_module", load)
        return libraries._frontend()

    def test_other_devices(self) -> None:
        host = find("host")
        assert Cudnn().supports(PROBLEM, host) == "cuDNN runs on NVIDIA GPUs only"
        with pytest.raises(DeviceError, match=r"^host: cuDNN runs on NVIDIA GPUs only$"):
            libraries.library_on(CUDNN, host)

    @pytest.mark.parametrize(("loaded", "reason"), [
        (ModuleNotFoundError("No module named 'cudnn'", name="cudnn"),
         f"cuDNN is not installed: {INSTALL}"),
        (OSError("libcudnn.so.9: file too short\nmore"),
         "cuDNN cannot be loaded: libcudnn.so.9: file too short"),
        (SimpleNamespace(__version__="1.20.0"),
         f"nvidia-cudnn-frontend 1.20.0 is older than 1.32: {INSTALL}"),
        (SimpleNamespace(__version__="1.32.0", backend_version=MagicMock(
            side_effect=RuntimeError("Unable to find symbol cudnnGetVersion"))),
         "libcudnn.so.9) was not found"),
        (SimpleNamespace(__version__="1.32.0", backend_version=lambda: 90100,
                         backend_version_string=lambda: "9.1.0"),
         f"cuDNN 9.1.0 is older than 9.2: {INSTALL}")],
        ids=["absent", "damaged", "old frontend", "frontend alone", "old library"])
    def test_reasons(self, monkeypatch: pytest.MonkeyPatch, loaded: object, reason: str) -> None:
        told = self.loading(monkeypatch, loaded)
        assert reason in told if "not found" in reason else told == reason

    def test_version(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loaded = SimpleNamespace(
            __version__="1.32.0", backend_version=lambda: 91900,
            backend_version_string=lambda: "9.19.0", create_handle=lambda: 1,
            set_stream=lambda handle, stream: None, cudnnGraphNotSupportedError=ValueError)
        assert self.loading(monkeypatch, loaded) is loaded
        device = SimpleNamespace(
            runs_cuda_libraries=True, current=contextlib.nullcontext, create_stream=lambda: None,
            stream_handle=lambda stream: 1)
        monkeypatch.setattr(libraries, "_on", libraries._started)
        assert Cudnn().version(device) == "9.19.0"  # type: ignore[arg-type]

    def test_no_version_without_a_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        device = SimpleNamespace(runs_cuda_libraries=True)
        monkeypatch.setattr(libraries, "_on", libraries._started)
        self.loading(monkeypatch, ModuleNotFoundError("No module named 'cudnn'", name="cudnn"))
        assert Cudnn().version(device) == ""  # type: ignore[arg-type]
        monkeypatch.setattr(libraries.importlib, "import_module", None)
        assert Cudnn().version(find("host")) == ""


def test_a_handle_has_a_stream_of_its_own_while_it_executes_nothing() -> None:
    handles, streams = itertools.count(100), itertools.count(1)
    current: dict[int, int] = {}
    api = SimpleNamespace(
        backend_version_string=lambda: "9.19.0", create_handle=lambda: next(handles),
        set_stream=current.__setitem__, cudnnGraphNotSupportedError=ValueError)
    device = SimpleNamespace(
        current=contextlib.nullcontext, create_stream=lambda: next(streams),
        stream_handle=lambda stream: 0 if stream is None else stream)
    library = libraries.CudnnLibrary(api, device)  # type: ignore[arg-type]
    with library.handle() as first, library.handle() as second:
        assert (current[first], current[second]) == (1, 2), "what builds is on no other's stream"
    for stream in (None, 50):
        with pytest.raises(RuntimeError), library.handle_on(stream) as handle:
            assert current[handle] == (stream or 0)
            raise RuntimeError
    assert current == {100: 1, 101: 2}


def first_plans(variants: list[Variant]) -> list[Variant]:
    """Returns the two best plans of every form; of other algorithms one variant."""
    return [v for v in variants if dict(v.config).get("rank", 2) in (0, 1)] or variants[:1]


class TestOnTheGpu:
    @pytest.fixture
    def gpu(self, cuda: Device) -> Device:
        reason = libraries.unavailable(CUDNN, cuda)
        if reason is not None:
            pytest.skip(reason)
        return cuda

    @pytest.mark.parametrize("problem", [
        Conv2dProblem(3, 16, 12, 10, 24, (3, 3), (2, 2), (1, 1, 1, 1), epilogue=BIAS_RELU),
        Conv2dProblem(2, 32, 9, 9, 32, (3, 3), (1, 1), (1, 1, 1, 1), groups=4,
                      epilogue=BIAS_CLIP),
        Conv2dProblem(1, 8, 14, 14, 8, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2)),
        Conv2dProblem(2, 8, 9, 11, 16, (3, 3), (2, 2), (0, 0, 1, 1), epilogue=BIAS_RELU),
        Conv2dProblem(2, 32, 10, 10, 32, (3, 3), (1, 1), (1, 1, 1, 1), groups=32,
                      epilogue=BIAS_CLIP),
        Conv2dProblem(3, 64, 7, 7, 32, (1, 1), epilogue=BIAS_RESIDUAL_RELU),
        Conv2dProblem(1, 16, 8, 8, 16, (5, 5), (1, 1), (2, 2, 2, 2), epilogue=BIAS_SILU),
        Conv2dProblem(2, 3, 15, 15, 7, (3, 3), epilogue=Epilogue(apply("sigmoid"))),
        Conv2dProblem(2, 8, 6, 6, 8, (3, 3), epilogue=Epilogue(apply("hard_sigmoid", 0.2, 0.5))),
    ], ids=["strided", "grouped", "dilated", "uneven pads", "depthwise", "residual", "swish",
            "odd channels", "not fusable"])
    def test_matches_the_reference(self, gpu: Device, problem: Conv2dProblem) -> None:
        ran = check(problem, gpu, taken=first_plans)
        assert any(name.startswith("cudnn ") for name in ran), ran

    def test_lists_the_same_plans_again(self, gpu: Device) -> None:
        before = list(Cudnn().variants(PROBLEM, gpu))
        cudnn_graph._offered.cache_clear()
        assert list(Cudnn().variants(PROBLEM, gpu)) == before != []

    def test_refuses_an_empty_batch(self, gpu: Device) -> None:
        empty = PROBLEM.first_images(0)
        assert Cudnn().supports(empty, gpu) == "a tensor is empty"

    @pytest.mark.parametrize("epilogue", ["fused", "separate"])
    def test_recorded_graph_and_threads_compute_the_same(self, gpu: Device, epilogue: str) -> None:
        problem, algorithm = PROBLEM, Cudnn()
        variants = [v for v in algorithm.variants(problem, gpu) if v["epilogue"] == epilogue]
        if not variants:
            pytest.skip(f"cuDNN offers no engine that is {epilogue}")
        weights = Weights(random_weights(problem), gpu)
        sources = [gpu.upload(pack(array, spec), "a test") for array, spec in
                   zip(random_inputs(problem), variants[0].inputs, strict=True)]
        state = algorithm.prepare(weights, problem, variants[0], gpu)

        def run(results: dict[str, np.ndarray], name: str, recorded: bool) -> None:
            stream = gpu.create_stream()
            target = gpu.empty(variants[0].outputs[0].nbytes, "a test")
            workspace = gpu.empty(max(variants[0].workspace, 256), "a test")

            def work(stream: Any) -> None:
                algorithm.launch(state, sources, [target], workspace, stream)

            graph = gpu.capture(work) if recorded else work
            assert graph is not None
            for _ in range(20):
                graph(stream)
            results[name] = np.empty(problem.outputs[0].shape, variants[0].outputs[0].dtype)
            gpu.read(target, results[name], stream)

        results: dict[str, np.ndarray] = {}
        with ThreadPoolExecutor(4) as threads:
            for i in range(4):
                threads.submit(run, results, f"thread {i}", i == 3)
            run(results, "here", False)
        assert len(results) == 5 and np.isfinite(results["here"]).all()
        for name, result in results.items():
            np.testing.assert_array_equal(result, results["here"], name)
