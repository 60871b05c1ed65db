"""Records what algorithms ask of NVIDIA's libraries for drawn layers. Stand-ins take the calls and
say which calls they got."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.device.host import HostBuffer
from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.ops.algorithm import PRECISIONS, Algorithm, Epilogue, Problem
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.vendor import cudnn, cudnn_graph, im2col, im2col_cublas, im2col_cusparse
from gossamer.ops.conv2d.vendor.cudnn import Cudnn
from gossamer.ops.conv2d.vendor.cudnn_graph import CudnnForm, CudnnOffer, ExecutionPlan
from gossamer.ops.conv2d.vendor.im2col_cublas import Im2colCublas
from gossamer.ops.conv2d.vendor.im2col_cusparse import Im2colCusparse
from gossamer.ops.gemm import cublas
from gossamer.ops.gemm.cublas import CublasGemm
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.vendor.cublas import Product
from gossamer.ops.weights import Weights
from tests.ops.candidates import NamingDevice, described, listed, one_of_each_form
from tests.ops.conv2d import drawn
from tests.recorded import Recorded, as_text, digest
from tests.simulated.device import H200

EPILOGUES = (
    *drawn.EPILOGUES,
    *(Epilogue(apply(function)) for function in ("sigmoid", "tanh", "abs")),
    *(Epilogue(apply("clip", *bounds)) for bounds in (
        (0.0, 6.0), (0.0, 1.0), (0.0, float("inf")), (-1.0, 1.0), (0.0, 0.0), (1.0, 6.0))),
    *(Epilogue(Expression(len(kinds) + 1, tuple(
        ExpressionStep(function, arguments) for function, arguments in steps),
        outputs), kinds) for kinds, steps, outputs in (
        (("channel",), (("add", (1, 0)),), (2,)), (("tensor",), (("mul", (1, 0)),), (2,)),
        (("channel",), (("add", (1, 1)),), (2,)), (("channel",), (("relu", (1,)),), (2,)),
        (("channel", "channel"), (("add", (1, 2)), ("add", (0, 3))), (4,)),
        (("tensor",), (("add", (0, 0)), ("add", (2, 1))), (3,)),
        (("tensor", "channel"), (("add", (0, 2)), ("add", (3, 1)), ("relu", (4,))), (5,)),
        (("channel", "tensor"), (("add", (0, 1)), ("add", (3, 2)), ("relu", (3,))), (5,)),
        (("tensor", "tensor"), (("add", (0, 1)), ("add", (3, 2))), (4,)),
        (("channel", "channel"), (("add", (0, 1)), ("add", (3, 2))), (4,)),
        (("channel",), (("relu", (0,)), ("add", (2, 1))), (3,)),
        (("channel",), (("add", (0, 1)), ("relu", (2,)), ("relu", (3,))), (4,)),
        (("channel",), (("add", (0, 1)), ("relu", (2,))), (2,)),
        (("channel", "tensor"), (("mul", (0, 1)), ("add", (3, 2)), ("tanh", (4,))), (5,)))))


class _Addressed(HostBuffer):
    """Memory whose address follows from its content."""

    @property
    def address(self) -> int:
        return zlib.crc32(self.bytes.tobytes())


class _Device(NamingDevice):
    """A GPU of which libraries take addresses."""

    def __init__(self) -> None:
        super().__init__(H200)

    def empty(self, nbytes: int, purpose: str, stream: Any = None) -> HostBuffer:
        return _Addressed(self, super().empty(nbytes, purpose, stream).bytes)

    def keep(self, *values: object) -> None:
        pass

    def stream_handle(self, stream: Any) -> int:
        return 77


class _Calls:
    """An object that takes all calls and notes them. Names in capitals are constants."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self._name, self._notes = name, notes

    def __getattr__(self, name: str) -> Any:
        return _Calls(f"{self._name}.{name}", self._notes)

    def __getitem__(self, name: str) -> Any:
        return _Calls(f"{self._name}[{name}]", self._notes)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if self._name.endswith("_size"):
            return 640
        noted = [*map(_noted, arguments),
                 *(f"{name}={_noted(value)}" for name, value in options.items())]
        self._notes.append(f"{self._name}({', '.join(noted)})")
        return _Calls(f"r{len(self._notes)}", self._notes)

    def __repr__(self) -> str:
        return self._name


def _noted(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_noted, value))}]"
    return repr(value) if isinstance(value, _Calls) else as_text(value)


class _Multiplication:
    """A product of cuBLAS that notes when it is multiplied."""

    notes: list[str]

    def __init__(self, product: Product, device: Device, bias: HostBuffer | None = None) -> None:
        self.product, self._bias = product, bias

    def multiply(self, offer: Any, *addresses: int, residual: int | None = None) -> None:
        self.notes.append(f"{as_text(self.product)} {described(self._bias)} {offer.workspace} "
                          f"{addresses} {residual}")


def _offers(product: Product, device: Device) -> tuple[SimpleNamespace, ...]:
    """Returns up to six algorithms for a product, as its text decides."""
    drawn_number = zlib.crc32(as_text(product).encode())
    least = 0 if product.bias or product.relu or product.residual else 1
    return tuple(SimpleNamespace(workspace=(drawn_number >> 4) % 1000 * rank)
                 for rank in range(least + (0, 1, 2, 5)[drawn_number % 4]))


def _texts(algorithm: Algorithm, problems: Iterable[tuple[Problem, Mapping[str, np.ndarray]]],
           notes: list[str]) -> dict[str, str]:
    """Returns a text for each problem: its variants, and the calls of some that are launched."""
    device, texts = _Device(), {}
    for number, (problem, arrays) in enumerate(problems):
        reason = algorithm.supports(problem, device)
        if reason is not None:
            texts[f"{algorithm.name} {number}"] = reason
            continue
        variants = list(algorithm.variants(problem, device))
        weights = Weights(arrays, device, "a layer")
        calls = []
        for variant in one_of_each_form(number, 9)(variants):
            notes.clear()
            device.launched.clear()
            state = algorithm.prepare(weights, problem, variant, device)
            inputs, outputs, workspace = (
                [device.empty(0, "a tensor") for _ in specs]
                for specs in (problem.inputs, problem.outputs, [0]))
            algorithm.launch(state, inputs, outputs, workspace[0])
            calls.append(as_text([notes, device.launched]))
        texts[f"{algorithm.name} {number}"] = (
            f"{problem.describe()}; {len(variants)} "
            f"{digest([listed(algorithm, problem, v, device) for v in variants])} "
            f"{' '.join(map(digest, calls))}")
    return texts


def _layers(count: int, seed: int, layers: Any = drawn.dense
            ) -> Iterator[tuple[Conv2dProblem, Mapping[str, np.ndarray]]]:
    rng = random.Random(seed)
    for layer in layers(count, seed):
        if layer.arrays is not None:
            problem = dataclasses.replace(
                layer.problem, epilogue=rng.choice(EPILOGUES),
                batch=rng.choice((0, *[layer.problem.batch] * 9)))
            yield problem, {"weight": layer.arrays["weight"], **{
                name: drawn.numbers(shape, 5) for name, shape in problem.weight_shapes.items()
                if name != "weight"}}


def _in_parts(layers: Iterable[tuple[Conv2dProblem, Mapping[str, np.ndarray]]],
              set_bytes: Callable[[int], None]
              ) -> Iterator[tuple[Conv2dProblem, Mapping[str, np.ndarray]]]:
    """Yields layers, each with a bound on the bytes of its im2col matrix, which is computed in one
    part or in a few."""
    for number, (problem, arrays) in enumerate(layers):
        column = 4 * problem.depth * problem.groups
        parts = (0.4, 1.0, 1.5, 2.5, 4.0)[number % 5]
        set_bytes(max(int(column * problem.pixels / parts), 1))
        yield problem, arrays


def _gemms(count: int) -> Iterator[tuple[GemmProblem, Mapping[str, np.ndarray]]]:
    rng = random.Random(4)
    for number in range(count):
        problem = GemmProblem(*(rng.choice((0 if index < 2 else 1, 1, 2, 5, 8, 17, 33, 64))
                                for index in range(3)), rng.choice(EPILOGUES))
        yield problem, {name: drawn.numbers(shape, number)
                        for name, shape in problem.weight_shapes.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cublas", "cusparse"])
def test_products(recorded: Recorded, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    notes: list[str] = []
    _Multiplication.notes = notes
    for module in (im2col_cublas, im2col_cusparse, cublas):
        monkeypatch.setattr(module, "unavailable", lambda name, device: None)
    for module in (im2col_cublas, cublas):
        monkeypatch.setattr(module, "offers", _offers)
        monkeypatch.setattr(module, "Multiplication", _Multiplication)

    def library_on(name: str, device: Device) -> Any:
        @contextlib.contextmanager
        def calling(what: str) -> Iterator[_Calls]:
            api = _Calls("api", notes)
            yield api

        return SimpleNamespace(handle=5, device=device, calling=calling)

    monkeypatch.setattr(im2col_cusparse, "library_on", library_on)
    for address, number in enumerate(("ZERO", "ONE")):
        monkeypatch.setattr(im2col_cusparse, number,
                            SimpleNamespace(ctypes=SimpleNamespace(data=address)))
    monkeypatch.setattr(im2col_cusparse.weakref, "finalize",
                        lambda *arguments: SimpleNamespace(atexit=True))
    set_bytes = functools.partial(monkeypatch.setattr, im2col, "_MATRIX_BYTES")
    if name == "cublas":
        recorded(name, {**_texts(Im2colCublas(), _in_parts(_layers(48, 3), set_bytes), notes),
                        **_texts(CublasGemm(), _gemms(40), notes)})
    else:
        recorded(name, _texts(Im2colCusparse(), _in_parts(
            _layers(48, 4, drawn.sparse), set_bytes), notes))


def test_graphs(recorded: Recorded) -> None:
    """Records the graphs by which convolutions and their epilogues are described to cuDNN."""
    texts = {}
    for number, epilogue in enumerate(EPILOGUES):
        nodes = cudnn_graph.pointwise(epilogue)
        texts[f"nodes {number}"] = as_text(nodes)
        problem = dataclasses.replace(next(_layers(1, number))[0], epilogue=epilogue)
        for precision, layout in (("fp32", "NCHW"), ("tf32", "NHWC"), ("fp16", "NHWC")):
            form = CudnnForm(precision, layout, nodes is not None)
            notes: list[str] = []
            cudnn_graph._graph(problem, form, _Calls("api", notes), _Calls("handle", notes))
            texts[f"graph {number} {precision}"] = (
                f"{cudnn_graph.channel_dtype(epilogue, form)} "
                f"{'; '.join(notes) if number % 9 == 7 else digest(notes)}")
    recorded("cudnn_graphs", texts)


class _Graph(_Calls):
    """A graph for which cuDNN has some plans and engines, and whose messages name workspaces."""

    def __init__(self, notes: list[str], message: str, fails: str) -> None:
        super().__init__("graph", notes)
        self._message, self._fails = message, fails
        self.plans = [SimpleNamespace(cpp_index=index + 3, engine_id=index) for index in (0, 2, 5)]

    def get_engine_count(self) -> int:
        return 14

    def get_plan_name_at_index(self, index: int) -> str:
        return f"eng{self.plans[index].engine_id}"

    def get_workspace_size(self) -> int:
        return 500

    def validate(self) -> None:
        if self._fails == "graph":
            raise RuntimeError(self._message)

    def create_execution_plan(self, engine: int, settings: object) -> None:
        self._notes.append(f"engine {engine} {settings}")
        if engine in (1, 7):
            raise RuntimeError("no such engine")
        self.plans.append(SimpleNamespace(cpp_index=engine + 20, engine_id=engine))

    def check_support(self) -> None:
        if self._fails == "support":
            raise RuntimeError(self._message)


_MESSAGES = (
    "", "first line\nsecond line", "No valid engine configs for Conv_",
    "NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING; Reason: nvrtc\nmore",
    "\n".join(f"Plan at index {index}: workspace violation. Requires {index * 90}"
              for index in (3, 5, 8, 20, 21, 23, 24, 26, 27, 28)),
    "Plan at index 3: workspace violation. Requires 901\nPlan at index 5: workspace violation. "
    "Requires 900\nPlan at index 8: Deselecting execution plan",
    "Plan at index 3: workspace violation. Requires 9000",
    "Plan at index 3: Deselecting execution plan\nPlan at index 5: Deselecting execution plan",
    "Plan at index 3: Deselecting execution plan\nPlan at index 5: it is too old",
    "Plan at index 3: it is too old\nPlan at index 5: it is too new", "\n",
    "\n".join(f"Plan at index {index}: workspace violation. Requires {index * 27}"
              for index in (3, 5, *range(20, 34))))


def test_answers(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records what is made of cuDNN's answers, and which plans are built."""
    texts = {}
    problem = next(_layers(1, 1))[0]
    for number, message in enumerate(_MESSAGES):
        for precision, fails in itertools.product(PRECISIONS, ("", "graph", "support")):
            notes: list[str] = []
            api = _Calls("api", notes)
            library: Any = SimpleNamespace(
                api=api, failures=(RuntimeError,), version="9",
                handle=lambda: contextlib.nullcontext(None))
            graph = functools.partial(_Graph, notes, message, fails)
            monkeypatch.setattr(cudnn_graph, "_graph", lambda *arguments, graph=graph: graph())
            form = CudnnForm(precision, "NHWC", True, exact=number % 2 == 1)
            answer = cudnn_graph._answer(library, problem, form, 900)
            texts[f"{number} {precision} {fails}"] = (
                f"{' '.join(f'{p.index} {p.engine} {p.workspace}' for p in answer.plans)} "
                f"{answer.refusal} {digest(notes)}")
    for index, engine, workspace in itertools.product((0, 2, 4), ("eng2", "eng4"), (499, 500)):
        plan = ExecutionPlan(index, engine, workspace)
        notes.clear()
        try:
            cudnn_graph._build(library, None, problem, CudnnForm("fp32", "NHWC", True), plan)
            texts[f"built {index} {engine} {workspace}"] = " ".join(notes)
        except RuntimeError as error:
            texts[f"built {index} {engine} {workspace}"] = str(error)
    recorded("cudnn_answers", texts)


@pytest.mark.slow
def test_plans(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records which of cuDNN's plans are offered, and how constants are packed for them."""
    device = _Device()

    def offered(device: Device, problem: Conv2dProblem, form: CudnnForm) -> CudnnOffer:
        number = zlib.crc32(as_text([problem.epilogue, problem.kernel, form]).encode())
        plans = tuple(ExecutionPlan(2 * rank, f"eng{rank}", 100 * rank)
                      for rank in range((0, 0, 1, 3, 8)[number % 5]))
        return CudnnOffer(plans, "" if plans else f"no engine {number % 7}")

    monkeypatch.setattr(cudnn, "unavailable", lambda device: None)
    monkeypatch.setattr(cudnn, "offered", offered)
    monkeypatch.setattr(cudnn, "is_offer_stored", lambda device, problem, form: zlib.crc32(
        as_text(form).encode()) % 3 == 0)
    monkeypatch.setattr(cudnn, "built", lambda device, problem, form, plan: f"{form} {plan}")
    texts = {}
    for number, (problem, arrays) in enumerate(_layers(60, 6)):
        algorithm = Cudnn()
        ahead = [digest(None if work is None else work.keywords["forms"])  # type: ignore
                 for count in (1, 2, 3)
                 for work in [algorithm.listing_ahead(problem, device, PRECISIONS[:count])]]
        reason = algorithm.supports(problem, device)
        text = f"{problem.describe()}; {' '.join(ahead)} {reason}"
        if reason is None:
            variants = list(algorithm.variants(problem, device))
            weights = Weights(arrays, device, "a layer")
            prepared = [
                (algorithm.prepare(weights, problem, variant, device),
                 as_text(algorithm.work_ahead(problem, variant, device).keywords))  # type: ignore
                for variant in one_of_each_form(number, 6)(variants)]
            text = " ".join([
                text, digest([listed(algorithm, problem, v, device) for v in variants]),
                digest(described(prepared)), digest([v.config_text for v in algorithm.variants_in(
                    problem, device, ("tf32", "fp16"))])])
        texts[f"{number}"] = text
    recorded("cudnn", texts)
