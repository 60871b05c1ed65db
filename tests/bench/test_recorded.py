"""Records of the layers, weights, files and times of benchmarks, for grids and drawn inputs."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.bench import (
    call_times,
    layer_tables,
    pruned_graphs,
    sparse_data,
    sparse_files,
    sparse_weights,
)
from gossamer.bench import processors as bench_processors
from gossamer.bench.call_times import CallTimes, Load
from gossamer.bench.ladder import layers as ladder_layers
from gossamer.bench.ladder.network import PublishedNetwork
from gossamer.bench.ladder.rungs import Rung
from gossamer.bench.layer_tables import ConvLayer
from gossamer.bench.peaks import Peaks
from gossamer.bench.suites import catalogue, mobile_networks
from gossamer.bench.suites.mobile_networks import MOBILE_NETWORKS, inverted_residual
from gossamer.expression import Expression, ExpressionStep, apply, identity
from gossamer.model.graph import Graph, Node, StaticGraph, ValueInfo
from gossamer.model.infer.resolve import resolve
from gossamer.model.opset.normalisation import AFFINE
from tests.bench.ladder.networks import every_layer
from tests.bench.sparse_folder import tiny_folder
from tests.recorded import Recorded, as_text, digest
from tests.recorded.outcomes import outcome, rounded


def static_of(nodes: list[Node], shapes: dict[str, tuple[int, ...]],
              constants: dict[str, np.ndarray], outputs: tuple[str, ...]) -> StaticGraph:
    graph = Graph("net", [ValueInfo("x", shapes["x"])],
                  [ValueInfo(name, (1,)) for name in outputs], nodes, constants, "net.onnx")
    shapes = {**{name: array.shape for name, array in constants.items()}, **shapes}
    return StaticGraph(graph, 2, nodes, constants, shapes, {})


def layer_text(layer: ladder_layers.PublishedLayer) -> str:
    fields = {name: digest(rounded(value)) if isinstance(value, np.ndarray) else value
              for name, value in vars(layer).items() if name != "problem"}
    return f"{type(layer).__name__} {fields} {getattr(layer, 'problem', '')}"


def test_layers_of_the_ladder(recorded: Recorded) -> None:
    """Records which nodes become layers of the published program, alone and behind a
    convolution."""
    rng = np.random.default_rng(0)

    def array(*shape: int) -> np.ndarray:
        return rng.integers(-3, 4, shape).astype(np.float32)

    constants = {"w": array(4, 3, 3, 3), "b": array(4), "m": array(4, 1, 1), "s": array(4, 1, 1),
                 "t": array(4, 1, 1), "p": array(5, 6), "q": array(6, 5), "c": array(5),
                 "cx": array(2, 3, 5, 5), "ch": array(2, 6), "cw": array(4, 4, 1, 1)}
    shapes = {"x": (2, 3, 5, 5), "y": (2, 4, 5, 5), "z": (2, 4, 5, 5), "h": (2, 6), "v": (2, 6, 1),
              "dw": (4, 3, 3, 3), "db": (4,), "o": (2, 4, 5, 1), "r": (2, 4, 5)}
    conv = {"strides": (1, 2), "pads": (1, 0, 1, 2), "dilations": (1, 1), "groups": 1}
    found = {}

    def add(case: str, nodes: list[Node], outputs: tuple[str, ...] = ("end",)) -> None:
        for node in nodes:
            for name in node.outputs:
                shapes.setdefault(name, shapes["y"])
        found[case] = outcome(
            ladder_layers.published_layers, static_of(nodes, shapes, constants, outputs),
            text=lambda made: " / ".join(map(layer_text, made)))

    epilogues = {"none": identity(), "add": apply("add"), "relu": apply("relu")}
    for inputs, (name, epilogue) in itertools.product(
            (["x", "w"], ["x", "w", "b"], ["x", "dw"], ["x", "w", "db"], ["cx", "w"],
             ["cx", "w", "b"]), epilogues.items()):
        add(f"conv {' '.join(inputs)} {name}",
            [Node("conv2d", "n", inputs, ["end"], {**conv, "epilogue": epilogue})])
    for inputs, (name, epilogue), trans_a, trans_b in itertools.product(
            (["h", "p"], ["h", "q"], ["h", "p", "c"], ["h", "q", "c"], ["ch", "p"], ["v", "p"],
             ["h", "h"], ["h", "p", "h"]), epilogues.items(), (False, True), (False, True)):
        add(f"gemm {' '.join(inputs)} {name} {trans_a} {trans_b}",
            [Node("gemm", "n", inputs, ["end"], {"epilogue": epilogue, "trans_a": trans_a,
                                                 "trans_b": trans_b})])
    for source, kind, axes in itertools.product(
            ("y", "r"), ("mean", "sum"), ((2, 3), (3, 2), (-1, -2), (2, -1), (1, 2), (2,), (3,),
                                          (1, 2, 3), (2, 3, 4))):
        add(f"reduce {source} {kind} {axes}",
            [Node("reduce", "n", [source], ["end"], {"kind": kind, "axes": axes})])
    functions = {"add": apply("add"), "mul": apply("mul"), "sub": apply("sub")}
    for inputs, (name, expression) in itertools.product(
            (["y", "z"], ["y", "y"], ["y", "o"], ["y", "cx"], ["cx", "y"], ["r", "r"],
             ["h", "h"], ["y", "m"]), functions.items()):
        add(f"elementwise {' '.join(inputs)} {name}",
            [Node("elementwise", "n", inputs, ["end"], {"expression": expression})])
    first = Node("conv2d", "first", ["x", "w", "b"], ["f"], {**conv, "epilogue": apply("add")})
    relu6 = apply("clip", 0.0, 6.0)
    after: dict[str, tuple[Expression, list[str]]] = {
        "relu": (apply("relu"), ["f"]), "relu6": (relu6, ["f"]),
        "clip": (apply("clip", -1.5, 2.5), ["f"]), "affine": (AFFINE, ["f", "m", "s", "t"]),
        "affine of values": (AFFINE, ["f", "m", "y", "t"]), "tanh": (apply("tanh"), ["f"]),
        "nothing": (identity(), ["f"]), "two": (Expression(1, (
            ExpressionStep("clip", (0,), (0.0, 6.0)), ExpressionStep("relu", (1,)))), ["f"]),
        "sum": (apply("add"), ["f", "y"]), "sum from behind": (apply("add"), ["y", "f"])}
    for (name, (expression, inputs)), second in itertools.product(after.items(), (
            None, "relu", "affine", "clip")):
        nodes = [first, Node("elementwise", "n", inputs, ["g"], {"expression": expression})]
        if second:
            other, others = after[second]
            nodes.append(Node("elementwise", "o", ["g", *others[1:]], ["end"],
                              {"expression": other}, source="Op 'o'"))
        for outputs in (("end",), ("end", "f"), ("end", "g")):
            add(f"behind a convolution {name} {second} {outputs}", nodes, outputs)
    add("behind a sum", [Node("elementwise", "s", ["y", "z"], ["f"], {"expression": apply("add")}),
                         Node("elementwise", "n", ["f"], ["end"], {"expression": relu6})])
    add("pool", [first, Node("pool", "n", ["f"], ["end"], {})])
    recorded("bench_ladder_layers", {case: text if len(text) < 150 else (
        f"{digest(text)} {text[:60]}") for case, text in found.items()})


class NotedDevice:
    """A device that notes kernels, memory and launches, and computes nothing."""

    def __init__(self, most: int) -> None:
        self.limits = SimpleNamespace(sure_work_group_size=most)
        self.notes: list[str] = []

    def compile(self, source: Any) -> Any:
        return SimpleNamespace(source=source, name=f"{source.path.name}:{source.function}",
                               defines=source.defines)

    def upload(self, array: np.ndarray, purpose: str) -> str:
        return f"array {digest(rounded(array))}"

    def empty(self, nbytes: int, purpose: str) -> str:
        self.notes.append(f"memory {nbytes}")
        return f"empty {nbytes}"

    def launch(self, kernel: Any, groups: Any, size: Any, arguments: Any, *, shared_bytes: int,
               stream: Any) -> None:
        values = [value.item() if isinstance(value, np.generic) else value for value in arguments]
        self.notes.append(f"{kernel.name} {kernel.defines} {groups} {size} {values}")

    def synchronize(self, stream: Any) -> None:
        self.notes.append("wait")


def test_programs_of_the_ladder(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(device: NotedDevice, works: list[Any], repeats: int, sample_us: float) -> Any:
        device.notes.append(f"measured {len(works)} {repeats} {sample_us}")
        works[-1](None)
        return [SimpleNamespace(median_us=abs(index - 1)) for index in range(len(works))]

    monkeypatch.setattr("gossamer.bench.ladder.network.measure", measure)
    found = {}
    for rung, dtype, batch, most in itertools.product(Rung, ("float32", "float64"), (1, 3),
                                                      (128, 256, 1024)):
        if (dtype == "float64" and batch == 3) or (most != 256 and batch == 3):
            continue
        device: Any = NotedDevice(most)
        static = resolve(every_layer(), batch)
        x = np.arange(batch * 3 * 7 * 6, dtype=np.float32).reshape(batch, 3, 7, 6)
        network = PublishedNetwork(static, x, rung, dtype, device)
        made = list(device.notes)
        device.notes.clear()
        network.run()
        key = f"{rung.name} {dtype} {batch} {most}"
        found[key] = (f"{network.kernels} {network.block_sizes} {len(made)} {digest(made)} "
                      f"{len(device.notes)} {digest(device.notes)}")
        if (dtype, batch, most) == ("float32", 1, 256):
            found[f"{key} launches"] = "; ".join(device.notes)
    monkeypatch.setattr("gossamer.bench.ladder.network._LARGEST", 5)
    found["too large"] = outcome(PublishedNetwork, static, x, Rung.PIXELS, "float32", device)
    for size in (6 * 10 * 10 * 3 - 1, 6 * 10 * 10 * 3):
        monkeypatch.setattr("gossamer.bench.ladder.network._LARGEST", size)
        for rung in (Rung.PIXELS, Rung.BORDERS):
            found[f"largest {size} {rung.name}"] = outcome(
                PublishedNetwork, static, x, rung, "float32", device, text=lambda made: "fits")
    found["labels"] = as_text([(rung.label, rung.contender) for rung in Rung])
    recorded("bench_ladder", found)


def _mutations(rng: random.Random, text: str, count: int) -> list[str]:
    """Returns texts in which a number, a line or a blank differs."""
    found = [text]
    for _ in range(count):
        words = re.split(r"(\s+)", text)
        index = rng.randrange(len(words))
        kind = rng.choice(["more", "less", "drop", "twice", "swap", "odd", "end"])
        if kind in ("more", "less") and words[index].strip(",").isdigit():
            number = int(words[index].strip(",")) + (1 if kind == "more" else -1)
            words[index] = f"{number}{',' * words[index].endswith(',')}"
        elif kind == "drop":
            words[index] = ""
        elif kind == "twice":
            words[index] *= 2
        elif kind == "swap":
            other = rng.randrange(len(words))
            words[index], words[other] = words[other], words[index]
        elif kind == "odd":
            words[index] = rng.choice(["x", "1e9", "-1", "0", "1234567890123", "nan", "1e39", "inf",
                                       "%", "\n", "  ", "999999999999", ".5", "1."])
        else:
            words = words[:index]
        found.append("".join(words))
    return list(dict.fromkeys(found))


def _weights_text(read: Any) -> str:
    matrix = read.matrix
    return (f"{matrix.shape} {matrix.data.tolist()} {matrix.indices.tolist()} "
            f"{matrix.indptr.tolist()} {read.is_mask} {read.density:.4f}")


def test_files_of_sparse_weights(recorded: Recorded, tmp_path: Path) -> None:
    rng = random.Random(0)
    found = {}
    head = "%%MatrixMarket matrix coordinate"
    texts = {"smtx": ["2, 3, 4\n0 3 4\n0 1 2 1\n", "3, 2, 0\n0 0 0 0\n\n", "1, 1, 1\n0 1\n0",
                      "2, 2, 2\n0 1 2\n1 0\n"],
             "mtx": [f"{head} real general\n% note\n2 3 3\n1 1 1.5\n2 3 -2\n1 2 0\n",
                     f"{head} pattern general\n\n3 2 2\n3 1\n\n1 2\n",
                     f"{head} integer general\n1 1 1\n1 1 4", f"{head} real symmetric\n1 1 0\n",
                     f"{head} real general\n2 2 2\n2 2 1e39\n1 1 inf\n",
                     "%%MatrixMarket matrix array real general\n1 1\n2\n"]}
    for suffix, originals in texts.items():
        for original in originals:
            for text in _mutations(rng, original, 60 if suffix == "smtx" else 30):
                path = tmp_path / f"some.{suffix}"
                path.write_text(text)
                told = outcome(sparse_files.read_sparse, path, text=_weights_text, hidden=tmp_path)
                if "expected a MatrixMarket file" in told:
                    # the words are SciPy's
                    told = " ".join(told.split(":")[:3])
                found[f"{suffix} {text!r}".replace(": ", " ")] = told
    for rows, columns in ((46340, 46341), (46341, 46341), (2**31, 1), (2**31 - 1, 1), (0, 1),
                          (1, 0)):
        found[f"size {rows} {columns}"] = outcome(sparse_files._check_size, "file", rows, columns,
                                                  1)
    for kernel, order in itertools.product(((1, 1), (2, 2), (2, 3), (3, 2), (1, 5)), (
            "crs", "rsc")):
        matrix = np.arange(24).reshape(2, 12) % 5
        entries = "".join(f"{row + 1} {column + 1} {matrix[row, column]}\n"
                          for row, column in zip(*np.nonzero(matrix), strict=True))
        (tmp_path / "a.mtx").write_text(
            f"{head} real general\n2 12 {np.count_nonzero(matrix)}\n{entries}")
        read = sparse_files.read_sparse(tmp_path / "a.mtx")
        found[f"filters {kernel} {order}"] = outcome(
            read.filters, kernel, order, hidden=tmp_path,
            text=lambda array: f"{array.shape} {digest(array)}")
    for name in ("a.txt", "none.mtx", "b.smtx"):
        found[f"name {name}"] = outcome(sparse_files.read_sparse, tmp_path / name, hidden=tmp_path)
    recorded("bench_sparse_files", found)


def test_folders_of_sparse_weights(recorded: Recorded, tmp_path: Path) -> None:
    found = {}
    line = "tiny,3x3,8,12,3,7,7,1,1,2,80"
    fields = line.split(",")
    lines = [line]
    for index, field in enumerate(fields[2:], 2):
        lines += [",".join([*fields[:index], value, *fields[index + 1:]])
                  for value in ("0", "1", str(int(field) + 1), str(int(field) - 1), "x", "")]
    lines += [",".join([*fields[:-1], value]) for value in ("100", "99.9", "-1", "49", "50", "51")]
    lines += [",".join(fields[:-1]), "", f"{line},more", "tiny,even,4,4,2,5,5,2,2,4,60",
              "tiny,even,4,4,2,6,5,2,2,4,60"]
    for index, text in enumerate(lines):
        folder = tiny_folder(tmp_path / str(index), text)
        sparse_data.skimcaffe.cache_clear()
        told = outcome(sparse_data.skimcaffe, folder, hidden=folder)
        found[f"line {text}"] = told.replace("expected net, layer, C, Hin, M, K, stride, pad, "
                                             "groups, Hout and sparsity_pct that agree", "...")
        if not index % 8:
            found[f"layers {text}"] = outcome(
                sparse_data.published_layers, folder, hidden=folder,
                text=lambda layers: digest([(each.layer, i) for i, each in enumerate(layers)]))
    sparse_data.skimcaffe.cache_clear()
    for names in ((), ("a/x",), ("a/x", "b/y"), ("none/x",), ("none/x", "none/y"),
                  ("none/x", "none/y", "none/z", "a/x")):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / "x").touch()
        for folder in (None, tmp_path):
            found[f"check {names} {folder is None}"] = outcome(
                sparse_data.check, "suite", folder, names, text=str, hidden=tmp_path)
    for conv, group, block in itertools.product(("1", "2", "3", "4", "projection"), "1234", "015"):
        for name in (f"bottleneck_{conv}_block_group{group}_{block}_1",
                     f"bottleneck_{conv}_block_group_projection_block_group{group}"):
            found[f"name {name}"] = outcome(sparse_data._resnet_name, name)
    for name in ("initial_conv", "final_dense", "other", "bottleneck_1_block_group1_1_2"):
        found[f"name {name}"] = outcome(sparse_data._resnet_name, name)
    for share in ("0.80", "0.90", "0.95", "0.98"):
        layers = [each.layer for each in sparse_data.masked_resnet50(tmp_path, share).values()]
        found[f"masks {share}"] = f"{sparse_data.masked_name(share)} {digest(layers)}"
    for text in ("", "a,1\nb,2\n", "a\n", "a,x\n", "a,1,2\n"):
        (tmp_path / "pixels.txt").write_text(text)
        sparse_data._output_pixels.cache_clear()
        told = outcome(sparse_data._output_pixels, tmp_path / "pixels.txt", hidden=tmp_path)
        found[f"pixels {text!r}"] = told.split("`:")[0]
    for shape, dtype in (((4, 18), "float32"), ((4, 17), "float32"), ((3, 18), "float32"),
                         ((4, 18), "float64"), ((4, 2, 9), "float32")):
        np.save(tmp_path / "filters.npy", np.arange(np.prod(shape), dtype=dtype).reshape(shape))
        found[f"filters {shape} {dtype}"] = outcome(
            sparse_data._npy_filters, tmp_path / "filters.npy", ConvLayer("l", 2, 5, 4, 3),
            hidden=tmp_path)
    recorded("bench_sparse_data", found)


def test_drawn_weights(recorded: Recorded) -> None:
    found = {}
    for index, (layer, density) in enumerate(itertools.product(
            (ConvLayer("a", 4, 5, 6, 3), ConvLayer("b", 8, 5, 8, 1), ConvLayer("d", 1, 5, 1, 1),
             ConvLayer("c", 6, 5, 4, 3, 1, 1, 2), ConvLayer("e", 3, 5, 3, 2, 1, 0, 3)),
            (0.0, 0.02, 0.25, 0.5, 0.9, 1.0))):
        weights = sparse_weights.drawn(layer, density)
        mask = weights != 0
        found[f"drawn {layer.name} {density}"] = (
            f"{weights.shape} {weights.dtype} {np.count_nonzero(mask)} {digest(mask)} "
            f"{float(np.abs(weights).sum()):.4f}")
        again = sparse_weights.redrawn(mask, (0.1, 0.5, 0.8, 1.0)[index % 4],
                                       np.random.default_rng(index))
        found[f"again {layer.name} {density}"] = f"{np.count_nonzero(again)} {digest(again)}"
    rng = np.random.default_rng(0)
    for total, count, most in itertools.product((0, 1, 2, 7, 12, 20), (1, 3, 5), (1, 4, 7, 20)):
        if total <= count * most:
            shares = rng.integers(1, 9, count).astype(float)
            found[f"parts {total} {most} {shares.astype(int).tolist()}"] = str(
                sparse_weights._apportioned(total, shares, most).tolist())
    for seed, shape in enumerate(((1, 1), (2, 3), (3, 2, 2), (4, 1))):
        for share in (0.0, 0.5, 1.0):
            mask = np.random.default_rng(seed).random(shape) < share
            found[f"values {shape} {share}"] = digest(rounded(
                sparse_weights.with_values(mask, np.random.default_rng(1))))
    recorded("bench_sparse_weights", found)


def test_pruned_networks(recorded: Recorded) -> None:
    rng = np.random.default_rng(0)
    found = {}

    def node(op: str, weight: str, **attributes: Any) -> Node:
        return Node(op, weight, ["x", weight], [f"{weight} out"], attributes)

    constants = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in {
        "conv": (4, 8, 3, 3), "point": (4, 8, 1, 1), "depth": (8, 1, 3, 3), "odd": (4, 6, 1, 1),
        "single": (4, 1, 1, 1), "rows": (5, 8), "columns": (8, 5), "thin": (5, 1),
        "other": (4, 8, 3, 3), "wide": (3, 4, 1, 3)}.items()}
    constants["zeros"] = np.zeros((4, 8, 1, 1), np.float32)
    constants["half"] = np.where(rng.random((4, 8, 1, 1)) < 0.5, 0, constants["point"])
    constants["ties"] = rng.integers(-2, 3, (4, 8, 1, 1)).astype(np.float32)
    nodes = [node("conv2d", name) for name in (
        "conv", "point", "depth", "odd", "single", "zeros", "half", "ties", "wide")]
    nodes += [node("gemm", "rows", trans_b=True), node("gemm", "columns", trans_b=False),
              node("gemm", "thin", trans_b=True), node("add", "other"), node("conv2d", "dynamic")]
    graph = Graph("net", [], [], nodes, constants)
    for name, change, values in (
            ("pruned", pruned_graphs.pruned, (0.0, 0.1, 0.5, 0.93, 1.0)),
            ("pointwise", pruned_graphs.pruned_pointwise, (0.0, 0.5, 1.0)),
            ("two of four", lambda graph, _: pruned_graphs.two_of_four(graph), (0,)),
            ("dense", lambda graph, _: pruned_graphs.without_zeros(graph), (0,))):
        for value in values:
            for weight, array in change(graph, value).constants.items():
                found[f"{name} {value} {weight}"] = (
                    f"{array.dtype} {array.shape} {np.count_nonzero(array)} "
                    f"{digest(rounded(np.round(array.astype(float), 4)))}")
    recorded("bench_pruned", found)


def test_tables_of_layers(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for name, layers in (
            ("convolutions", layer_tables.distinct_convolutions()),
            ("pointwise", layer_tables.pointwise_convolutions()),
            ("resnet50", layer_tables.resnet50()), ("halving", layer_tables.resnet50(halving=3)),
            ("googlenet", layer_tables.googlenet()), ("yolo", layer_tables.yolo()),
            ("blocks", layer_tables.mobilenet_v2_blocks()), ("products", layer_tables.PRODUCTS),
            ("binary", layer_tables.BINARY)):
        for layer in layers:
            found[f"{name} {layer.name}"] = " ".join(
                [*map(str, list(vars(layer).values())[1:]), str(getattr(layer, "out_size", ""))])

    class Ones:
        def standard_normal(self, shape: tuple[int, ...]) -> np.ndarray:
            return np.ones(shape, np.float32)

    # all weights are ones, so that a record needs one of them and no time is lost by drawing
    monkeypatch.setattr(mobile_networks.np.random, "default_rng", lambda seed: Ones())
    networks = {**MOBILE_NETWORKS, **{block.name: lambda block=block: inverted_residual(block)
                                      for block in layer_tables.mobilenet_v2_blocks()}}
    for name, make in networks.items():
        graph = make()
        nodes = [(node.op, node.inputs, node.outputs, node.attributes) for node in graph.nodes]
        weights = [(key, array.shape, f"{array.flat[0]:.5f}")
                   for key, array in graph.constants.items()]
        shapes = [info.shape for info in (*graph.inputs, *graph.outputs)]
        found[f"network {name}"] = f"{len(nodes)} {digest(nodes)} {digest(weights)} {shapes}"
    for value in (1, 3.9, 4, 11.9, 12, 16, 19.9, 20, 24 * 1.4, 44.8, 100):
        found[f"divisible {value}"] = str(mobile_networks._divisible(value))
    recorded("bench_layers", found)


def test_selected_cases(recorded: Recorded, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    sparse_data.skimcaffe.cache_clear()
    found = {}

    def shown(items: list[Any]) -> str:
        names = [(item.suite, item.name, item.batch) for item in items]
        kinds = [(item.is_layer, item.is_training, item.is_tuning, item.is_ladder, item.is_called,
                  item.is_module, item.sparsity is not None) for item in items]
        return f"{len(items)} {digest([names, kinds])} {names[:2]}"

    def add(case: str, names: list[str], batches: tuple[int, ...] = (1,), **options: Any) -> None:
        told = outcome(catalogue.select, names, batches, text=shown, hidden=tmp_path, **options)
        found[case.replace(": ", "=")] = told if len(told) < 200 else (
            f"{told[:110]}... {digest(told)}")

    loads = (Load(), Load(4), Load(1, 50.0), Load(2, 1e-3, 1.0))
    zoo = [Path("mobilenet_v2"), Path("yolov2-tiny")]
    for suite in catalogue.SUITES:
        for batches in ((1,), (8,), (1, 8, 1)):
            for name, options in {
                    "": {}, "data": {"data": folder}, "effort": {"effort": "quick"},
                    "loads": {"loads": loads}, "images": {"images": tmp_path},
                    "modules": {"modules": "res*"}, "sparse": {"sparsity": 0.5},
                    "case": {"parts": "mobilenetv2"}}.items():
                if suite not in ("torch-modules",) and (batches != (8,) or not name):
                    add(f"{suite} {batches} {name}", [suite], batches, **options)
    for names in ([], ["none"], ["none", "other"], ["a.onnx"], ["gemm", "conv-layers", "gemm"]):
        add(f"suites {names}", names)
    for parts in ("", "x", "mobilenetv2", "1024", "1024,2048", "512", "51", ",8192,", "fc,caffenet",
                  "pointwise/256", "none"):
        add(f"case {parts}", ["gemm"], parts=parts)
        add(f"case of two {parts}", ["gemm", "binary-layers"], (1, 4), parts=parts)
    for sparsity in (-0.1, 0.0, 0.5, 0.999, 1.0):
        add(f"sparsity {sparsity}", ["sparse-layers"], data=folder, sparsity=sparsity, parts="tiny")
        add(f"sparsity of others {sparsity}", ["gemm"], sparsity=sparsity)
    for models in ([], zoo[:1], zoo, [zoo[0], zoo[0]]):
        for suite in ("latency", "throughput", "gemm", "mobilenet"):
            add(f"models {list(map(str, models))} {suite}", [suite], models=models)
    found["named"] = as_text([sorted(catalogue.named({"a", "ab", "b"}, parts)) for parts in (
        None, "", "a", "b", "ab", "a,b", "c", ",")])
    recorded("bench_cases", found)


def test_times_of_calls(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    found = {}
    for count in (1, 2, 3, 10, 100, 2000):
        for name, samples in (("equal", np.full(count, 5.0)),
                              ("drawn", rng.integers(1, 2000, count).astype(float))):
            times = CallTimes(samples, [], 2.0)
            found[f"{name} {count}"] = (
                f"{as_text(rounded(vars(times.timing)))} {as_text(rounded(times.tail))} "
                f"{times.histogram()} {times.histogram(3)}")
    for threads, rate in itertools.product((1, 2), (None, 0.5, 1000.0, 1234567.0)):
        found[f"load {threads} {rate}"] = str(Load(threads, rate))
        dues = call_times._dues(Load(threads, rate))
        found[f"dues {threads} {rate}"] = str(dues and list(itertools.islice(dues, 4)))
    for flops, nbytes, cache, precision in itertools.product(
            (0, 1000, 10**6), (0, 999, 1000, 1001, 10**7), (0, 1000), ("fp32", "fp16")):
        found[f"light {flops} {nbytes} {cache} {precision}"] = str(Peaks(
            "chip", {"fp32": 1e9}, 1e9, {}, cache).speed_of_light_us(flops, nbytes, precision))
    for contenders, fails_at in itertools.product((1, 2, 3), (None, 0, 2, 7)):
        notes: list[str] = []

        def one_round(new_call: Any, load: Load, notes: list[str] = notes,
                      fails_at: int | None = fails_at) -> np.ndarray:
            notes.append(new_call)
            if len(notes) - 1 == fails_at:
                raise ValueError("broke")
            return np.arange(1.0, 2 + len(notes))

        monkeypatch.setattr(call_times, "_round", one_round)
        calls: Any = [f"c{index}" for index in range(contenders)]
        times = call_times.in_turn(calls, Load(), lambda notes=notes: notes.append("|"))
        told = [str(each) if isinstance(each, Exception) else
                f"{each.samples.tolist()} {each.rounds}" for each in times]
        found[f"in turn {contenders} {fails_at}"] = f"{' '.join(notes)} {digest(told)}"
    recorded("bench_times", found)


def test_processors(recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_processors, "_SYSTEM", tmp_path)
    found = {}
    for index, levels in enumerate(({}, {1: "0-1"}, {1: "0", 2: "0-3,8"}, {3: "5,7-9\n", 2: "0-99"},
                                    {1: "0", 2: None})):
        for level, text in levels.items():
            cache = tmp_path / f"cpu{index}" / "cache" / f"index{level}"
            cache.mkdir(parents=True)
            (cache / "level").write_text(f"{level}\n")
            if text is not None:
                (cache / "shared_cpu_list").write_text(text)
        found[f"sharing {levels}".replace(": ", "=")] = as_text(
            bench_processors.sharing_cache(index))
    for transfers in ((), (79.0,), (80.0,), (80.4,), (81.0,), (10.0, 81.0), (10.0, 90.0, 95.0)):
        found[f"transfers {transfers}"] = bench_processors.far_notice(transfers)
    for allowed in ([], [0], [0, 1], [0, 1, 2, 3]):
        asked: list[tuple[int, int]] = []

        def read(writer: int, reader: int, asked: list[tuple[int, int]] = asked) -> float:
            asked.append((writer, reader))
            return 10.0 * writer + 5 + len(asked) % 3

        monkeypatch.setattr(bench_processors, "allowed", lambda allowed=allowed: allowed)
        monkeypatch.setattr(bench_processors, "_read_ns", read)
        monkeypatch.setattr(bench_processors, "sharing_cache", lambda processor: {0, 1, 2})
        found[f"allowed {allowed}"] = f"{bench_processors.transfer_ns()} {asked}"
    found["order"] = f"{len(bench_processors._ORDER)} {digest(sorted(bench_processors._ORDER))}"
    recorded("bench_processors", found)
