"""Records of contests with drawn contenders, of servers under load, and of the suites' networks."""

from __future__ import annotations

import itertools
import random
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.bench import call_contest, contest, serving, training_work
from gossamer.bench.call_contest import CallCase
from gossamer.bench.call_times import CallTimes, Load
from gossamer.bench.contender import (
    AbsentError,
    Alternative,
    CalledContender,
    PeerNetwork,
    ReadyContender,
    TimedContender,
)
from gossamer.bench.load_client import Outcome
from gossamer.bench.peaks import Peaks
from gossamer.bench.peers import inference, training_peers
from gossamer.bench.rows import Stamp
from gossamer.bench.suites import binary_networks, calls, networks
from gossamer.bench.work import Case, least_work
from gossamer.errors import DeviceError
from gossamer.expression import apply
from gossamer.measure import Timing
from gossamer.model.graph import Graph, Node, ValueInfo
from gossamer.ops.backprop.problem import BackpropProblem
from tests.recorded import Recorded, as_text, digest
from tests.recorded.outcomes import outcome, rounded

STAMP = Stamp({"gossamer": "1"}, "gossamer bench", "abc", "run")
PEAKS = Peaks("made", {"fp32": 1e9, "fp16": 4e9}, 1e9)
HERE: Any = SimpleNamespace(name="made", api="cuda", chip="Chip", on_processors=False,
                            time=lambda work: work(None), synchronize=lambda: None)
THERE: Any = SimpleNamespace(name="host", api="host", chip="Chip", on_processors=True,
                             time=lambda work: work(None), synchronize=lambda: None)
EXPECTED = np.array([[1.0, 2.0]])


def row_text(row: Any) -> str:
    return (f"{row.contender} {row.device} {row.precision} {row.median_us:.4f} {row.p25_us:.4f} "
            f"{row.error:.4f} {row.speed_of_light_us} {row.config} {row.layout} {list(row.tail)}")


def result_text(result: Any) -> str:
    rows = " / ".join(map(row_text, result.rows))
    return (f"{rows} absent {list(result.absent.items())} failed {list(result.failed.items())} "
            f"notice {result.notice[:60]}")


def test_contests(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    monkeypatch.setattr(contest, "now", lambda: "now")
    monkeypatch.setattr(contest, "transfer_ns", lambda: 100.0)
    found = {}

    def interleave(tasks: Any, sample_us: float, budget_us: float, apart: bool) -> list[Timing]:
        timings = []
        for task in tasks:
            with task.around():
                task.work(None)
                task.work(None)
            median = rng.choice([1.0, 2.0, 3.0, 10.0])
            timings.append(Timing(median, median * rng.choice([0.95, 1.0, 0.5]), median, 3))
        return timings

    monkeypatch.setattr(contest, "interleave", interleave)

    def alternatives(name: str, device: Any) -> Any:
        kind = rng.choice(["good", "good", "good", "two", "wrong", "absent", "fails", "breaks",
                           "timed", "none"])
        precision = rng.choice(["fp32", "fp16"])
        runs = rng.choice([1, 1, 4])

        def make() -> Any:
            if kind == "fails":
                raise ValueError(f"{name} has no\nsuch layer")
            error = {"wrong": 1.0}.get(kind, rng.choice([0.0, 1e-5, 1.5e-4]))
            calls: list[int] = []

            def work(stream: Any) -> None:
                calls.append(1)
                if kind == "breaks" and len(calls) > 3:
                    raise DeviceError(f"{name} broke")

            output = EXPECTED * (1 + error)
            if kind == "timed":
                return TimedContender(name, device, lambda count: output[:count], "row",
                                      "planned", Timing(5.0, 4.0, 6.0, 2), precision)
            return ReadyContender(name, device, work, lambda count: output[:count], "NCHW",
                                  "config", precision, runs=runs)

        def contenders() -> list[Alternative]:
            if kind == "absent":
                raise AbsentError("not installed")
            if kind == "none":
                return []
            return [Alternative(f"way {index}", make) for index in range(1 + (kind == "two"))]

        return contenders

    for index in range(60):
        names = ["gossamer", *rng.sample(["gossamer:unfused", "torch-compile", "cudnn", "jax"], 2)]
        device = rng.choice([HERE, THERE])
        case = Case("suite", "case", 3, 1000, 4000, 0.5, EXPECTED,
                    {name: alternatives(name, device) for name in names},
                    beside={"gossamer:dense": lambda device=device: Case(
                        "suite", "case", 3, 2000, 8000, 1.0, EXPECTED,
                        {"gossamer:dense": alternatives("gossamer:dense", device)})}
                    if index % 3 else {})
        notes: list[str] = []
        told = outcome(contest.run, case, PEAKS, STAMP, notes.append, text=result_text)
        found[f"contest {index}"] = f"{told} {digest(notes)}"
    for spreads in ([], [1.0], [1.1], [1.11], [2.0, 1.0, 1.5]):
        found[f"scattered {spreads}"] = contest.scattered_notice(
            (f"c{index}", Timing(1, 1.0, spread, 3)) for index, spread in enumerate(spreads))
    found["scattered at 0"] = contest.scattered_notice([("c", Timing(0, 0, 0.0011, 1))])
    recorded("bench_contests", found)


def test_contests_of_calls(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    monkeypatch.setattr(call_contest, "now", lambda: "now")
    monkeypatch.setattr(call_contest, "transfer_ns", lambda: 100.0)
    found = {}

    def in_turn(made: Any, load: Any, before_round: Any) -> list[Any]:
        before_round()
        return [ValueError("broke\nlater") if rng.random() < 0.2 else CallTimes(
            np.array([1.0, 2, 3, 4]) * rng.choice([1, 2, 8]), [1.0, 1.0, rng.choice([1.0, 3.0])],
            2.0) for _ in made]

    monkeypatch.setattr(call_contest, "in_turn", in_turn)
    for index in range(50):
        called: dict[str, Any] = {}
        for name in rng.sample(["gossamer", "gossamer:bound fp32", "torch-compile", "onnxruntime"],
                               3):
            kind = rng.choice(["good", "good", "good", "wrong", "absent", "fails"])
            runs, error = rng.choice([None, None, 2, 1.5]), rng.choice([0.0, 9e-5, 1.1e-4])

            def make(name: str = name, kind: str = kind, runs: Any = runs,
                     error: float = error) -> CalledContender:
                if kind == "absent":
                    raise AbsentError("not here")
                if kind == "fails":
                    raise rng.choice([ValueError("no\nway"), DeviceError("gone"), ValueError("")])
                output = EXPECTED * (2.0 if kind == "wrong" else 1 + error)
                return CalledContender(name.split()[0], rng.choice([HERE, THERE]),
                                       lambda: lambda: output, lambda value: value, "row", "config",
                                       "fp32", runs, lambda us: f"{us:.3f} described")

            called[name] = make
        case = CallCase("latency", "net/arrays", 1, 10, 20, 1.0, EXPECTED, {}, called=called,
                        load=Load(rng.choice([1, 2])))
        found[f"calls {index}"] = outcome(call_contest.run, case, STAMP, text=result_text)
    recorded("bench_call_contests", found)


def test_servers_under_load(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for count, percent in itertools.product((0, 1, 2, 3, 100, 101, 1000), (0, 50, 99, 99.9, 100)):
        made = Outcome([float(index) for index in range(count)][::-1], {}, 2.0)
        found[f"percentile {count} {percent}"] = f"{made.percentile_s(percent)} {made.rate}"
    found["rate without time"] = str(Outcome([1.0], {}, 0.0).rate)
    for rate, statuses, batches in itertools.product(
            (None, 5.0), ({}, {"200": 3}, {"200": 3, "429": 2, "failed": 4}),
            ({}, {1: 0}, {8: 3, 1: 1}, {2: 5, 4: 0})):
        found[f"row {rate} {list(statuses.items())} {list(batches.items())}"] = as_text(vars(
            serving._row("litserve", 2, rate, Outcome([0.1, 0.2, 0.4], statuses, 3.0), batches)))
    photos = [np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3) + index for index in range(2)]
    for server, model in itertools.product(serving.SERVERS, ("net", "dir/net.onnx", "a.plan",
                                                             "b.onnx.gz", "c.cfg", "d.txt")):
        setting = serving.Setting(model, "host", 1.0, "5ms")
        found[f"requests {server} {model}"] = as_text(
            [str(part) if isinstance(part, dict) else part
             for part in serving._requests(server, setting, "x", photos)])
    preprocessing = object()
    for shape, known in itertools.product(
            ((None, 3, 4, 5), (None, 3, None, 5), (None, None, 4, 5), (None, 3, 4, None),
             (None, 12), (2, 3, 4, 5)), (True, False)):
        graph = Graph("net", [ValueInfo("x", shape)], [], [], {})
        graph.metadata = SimpleNamespace(  # type: ignore[assignment]
            preprocessing=preprocessing if known else None)
        monkeypatch.setattr(serving, "load", lambda model, graph=graph: graph)
        found[f"input {shape} {known}"] = outcome(
            serving._network_input, serving.Setting("net", "host", 1.0, "5ms", 7))
    for rates, photo_count in itertools.product(([], [3.0], [1.0, 20.0]), (1, 2)):
        asked: list[Any] = []
        counts = iter(range(100))

        def run(request: Any, asked: list[Any] = asked) -> Outcome:
            asked.append([request.path, len(request.bodies), request.rate, request.seconds,
                          request.connections])
            return Outcome([0.5] * 8, {"200": 8}, 2.0)

        monkeypatch.setattr(serving, "run", run)
        monkeypatch.setattr(serving, "_started", lambda server, setting: nullcontext(80))
        monkeypatch.setattr(serving, "_batches", lambda server, port, counts=counts: {
            1: next(counts), 8: 4})
        monkeypatch.setattr(serving, "_network_input", lambda setting: ("x", (1, 2, 2, 3)))
        for seconds in (1.0, 10.0):
            setting = serving.Setting("net", "host", seconds, "5ms", photo_count)
            rows = list(serving.measure(setting, ["gossamer", "litserve"], rates))
            found[f"measured {rates} {photo_count} {seconds}"] = as_text(
                [asked, [vars(row) for row in rows]])
            asked.clear()
    recorded("bench_servers", found)


def test_networks_of_suites(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}

    class First:
        """Gives the first number in place of drawn ones, which would take seconds."""

        def choice(self, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
            return np.broadcast_to(values[0], shape)

        def integers(self, low: int, high: int, shape: tuple[int, ...]) -> np.ndarray:
            return np.broadcast_to(np.int8(low), shape)

    with monkeypatch.context() as patch:
        patch.setattr(binary_networks.np.random, "default_rng", lambda seed: First())
        graphs = {name: make().graph for name, make in binary_networks.binary_networks().items()}
    for name, graph in graphs.items():
        nodes = [(node.op, node.inputs, node.outputs, node.attributes) for node in graph.nodes]
        values = [(key, array.shape, f"{array.flat[0]:g}")
                  for key, array in graph.constants.items()]
        found[f"network {name}"] = f"{len(nodes)} {digest(nodes)} {digest(values)} {graph!r}"
    for functions in ((), ("relu",), ("sign",), ("less", "relu"), ("floor",), ("equal",)):
        nodes = [Node("elementwise", "n", ["x"], ["y"], {key: apply(function)})
                 for function, key in zip(functions, ("expression", "epilogue"), strict=False)]
        found[f"errors {functions}"] = as_text(networks._most_error(Graph("g", [], [], nodes, {})))
    for ops in ((), ("conv2d",), ("gemm", "pool"), ("conv2d", "gemm", "matmul")):
        found[f"forced {ops}"] = as_text(networks._forced_algorithms(ops))
    for shapes in (((None, 3, 4, 4),), ((2, None),), ((None, 3), (None, 3))):
        made = PeerNetwork("net", Graph("net", [ValueInfo(f"x{index}", shape) for index, shape in (
            enumerate(shapes))], [], [], {}))
        found[f"input {shapes}"] = outcome(networks.input_of, made, 3, text=lambda x: (
            f"{x.shape} {x.dtype} {float(x.flat[0]):.5f}"))
        for kind in ("tensors", "arrays", "bytes"):
            found[f"input {shapes} {kind}"] = outcome(calls._input, made, 2, kind, text=lambda x: (
                f"{x.shape} {x.dtype}"))
            found[f"graph {shapes} {kind}"] = outcome(calls._graph, made, kind, text=lambda graph: (
                str([(info.shape, info.dtype, str(info.given)) for info in graph.inputs])))
        found[f"preparation {shapes}"] = outcome(calls._preparation, made, text=str)
    for channels in (1, 2, 3):
        made = PeerNetwork("net", Graph("net", [ValueInfo("x", (None, channels, 6, 6))], [], [],
                                        {}))
        found[f"preparation {channels}"] = outcome(calls._preparation, made, text=str)
    for count, batch in itertools.product((1, 2, 5), (1, 8)):
        done: list[int] = []
        single = CalledContender("c", HERE, lambda done=done: lambda: done.append(1) or len(done),
                                 lambda value: value, "row", "config", "fp32")
        repeated = calls._repeated(single, count, batch)
        plan: Any = SimpleNamespace(device=HERE, stream=lambda batches: [sum(each) for each in (
            batches)])
        streamed = calls._streamed("c", plan, lambda count=count: [(index, 3) for index in (
            range(count))], count / 2, calls._Shares(batch, 8, 1.0, 1.0), "fp32")
        found[f"repeated {count} {batch}"] = (
            f"{repeated.new_call()()} {done} {repeated.runs} {repeated.described(5.0)} "
            f"{streamed.new_call()()} {streamed.config} {streamed.runs}")
    for rank, kind in itertools.product((2, 4), ("tensors", "arrays", "bytes")):
        found[f"layout {rank} {kind}"] = calls._layout(np.zeros((1,) * rank), kind)
    for load in (Load(), Load(4), Load(1, 50.0), Load(2, 0.5)):
        found[f"name {load}"] = calls._case_name("net", "arrays", load)
    for batch, nbytes, kernels, us, more in itertools.product((1, 64), (0, 4000), (0.5, 200.0), (
            1.0, 400.0), ("", "more")):
        found[f"shares {batch} {nbytes} {kernels} {us} {more}"] = calls._Shares(
            batch, nbytes, kernels, 1e4, more).text(us)
    for shape, zeros in (((4, 3, 3, 3), 0), ((4, 3, 3, 3), 5), ((4, 3, 1, 1), 12), ((0, 3), 0)):
        weight = np.ones(shape, np.float32)
        weight.reshape(-1)[:zeros] = 0
        for op in ("conv2d", "gemm", "other"):
            layer: Any = SimpleNamespace(op=op, weights={"weight": weight}, problem=SimpleNamespace(
                flops=10**6, least_bytes=10**5, outputs=[SimpleNamespace(size=64)]))
            found[f"work {shape} {zeros} {op}"] = str(least_work(layer))
    recorded("bench_networks", found)


def test_training(recorded: Recorded) -> None:
    found = {}
    for sizes, nets, samples in (((3, 2, 2), 1, 40), ((4, 3, 2), 3, 500)):
        problem = BackpropProblem(sizes, samples, samples, networks=nets)
        count = problem.weight_count
        start = np.arange(nets * count, dtype=np.float32).reshape(nets, count) / 100
        rng = np.random.default_rng(0)
        work = training_work.EpochWork(
            problem, rng.random((samples, sizes[0]), np.float32),
            rng.random((samples, sizes[-1]), np.float32), start, 20, tuple(range(nets))[::2],
            "inputs")
        found[f"layers {sizes}"] = as_text([(a.shape, digest(a), b.shape, digest(b))
                                            for a, b in work.layers])
        found[f"flat {sizes}"] = str(bool((training_work.flat(work.layers) == start).all()))
        found[f"settings {sizes}"] = as_text([work.settings(), work.order(7)])
        found[f"expected {sizes}"] = f"{work.expected().shape} {digest(rounded(work.expected()))}"
        for us in (1e-4, 1.0, 600.0, 900.0, 2000.0, 1e6):
            begun: list[int] = []

            def begin(count: int, begun: list[int] = begun, start: np.ndarray = start) -> Any:
                begun.append(count)
                return training_work.TrainingRun(lambda stream: None, lambda: start + 1)

            device: Any = SimpleNamespace(time=lambda work, us=us: 20 * us,
                                          synchronize=lambda: None)
            ready = training_work.ready("c", device, work, begin, "row", "config")
            found[f"ready {sizes} {us}"] = (f"{ready.runs} {ready.config} "
                                            f"{ready.output(1).shape} {begun}")
    for most in (1, 2, 3, 4, 7, 8, 9, 96):
        found[f"threads {most}"] = str(training_peers._thread_counts(most))
    for cuda in (False, True):
        found[f"peers {cuda}"] = as_text(training_peers.defaults(
            SimpleNamespace(runs_cuda_libraries=cuda)))  # type: ignore[arg-type]
    recorded("bench_training", found)


def test_default_peers(recorded: Recorded) -> None:
    found = {}
    for cuda, compiles, layers in itertools.product((False, True), repeat=3):
        device: Any = SimpleNamespace(runs_cuda_libraries=cuda, compiles=compiles,
                                      api="opencl" if compiles and not cuda else "cuda", name="d")
        found[f"defaults {cuda} {compiles} {layers}"] = as_text(
            inference.defaults(device, layers))
        for is_layer, precisions in itertools.product((False, True), (("fp32",), ("fp16",))):
            network: Any = SimpleNamespace(is_layer=is_layer, torch=None, name="net")
            for name in ("onnxruntime", "opencv-dnn", "jax-jit", "torch-eager"):
                told = outcome(inference.PEERS[name], network, np.zeros((1, 3)), device, precisions)
                # what is installed differs from machine to machine
                if told.startswith("AbsentError") and "installed" not in told:
                    found[f"{name} {cuda} {is_layer} {precisions} {compiles}"] = told
    recorded("bench_peers", found)
