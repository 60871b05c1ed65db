"""Small valid files for every reader, which the mutators start from."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import gossamer
from gossamer.measure import Timing
from gossamer.plan.candidate import Measurement
from gossamer.plan.store import tuning_file
from gossamer.train import MLP
from gossamer_bench import row_files
from tests.bench.verb import HEADING, LINES, row
from tests.model.onnx_models import model, part, weights
from tests.model.readers.darknet.interpreter import random_weights
from tests.model.readers.darknet.networks import conv, head, net, section
from tests.model.readers.darknet.test_reader import images_for
from tests.onnx_parts import choosing, sampled, texts
from tests.plan.small import small

_RNG = np.random.default_rng(5)
PIXELS = _RNG.integers(0, 256, (12, 10, 3), dtype=np.uint8)
SAMPLES = _RNG.integers(0, 256, (12, 8, 8), dtype=np.uint8)
LABELS = np.arange(12) % 3


def onnx_files() -> list[bytes]:
    """Returns networks that hold most of the operators, in several opsets."""
    node = helper.make_node
    with_metadata = onnx.ModelProto()
    with_metadata.CopyFrom(small())
    for key, value in {"classes": ["a", "b", "c", "d"], "outputs": "scores",
                       "preprocessing": {"size": [6, 5], "mean": [1, 2, 3], "std": [1, 1, 1]},
                       "anchors": [[10, 13], [16, 30]], "picture": {"height": 2, "width": 3,
                                                                    "channels": "grey"}}.items():
        with_metadata.metadata_props.add(key=key, value=json.dumps(value))
    ints = np.array
    layout = model(
        [node("Pad", ["x", "pads"], ["a"], "pad"),
         node("Resize", ["a", "", "scales"], ["b"], "resize", mode="nearest"),
         node("Slice", ["b", "starts", "ends", "axes"], ["c"], "slice"),
         node("Transpose", ["c"], ["d"], "transpose", perm=[0, 2, 3, 1]),
         node("Shape", ["d"], ["s"], "shape"),
         node("Gather", ["s", "zero"], ["n"], "gather", axis=0),
         node("Unsqueeze", ["n", "axis"], ["n1"], "unsqueeze"),
         node("Concat", ["n1", "minus"], ["shape1"], "concat", axis=0),
         node("Reshape", ["d", "shape1"], ["e"], "reshape"),
         node("ReduceMean", ["e"], ["f"], "mean", axes=[1], keepdims=1),
         node("Expand", ["f", "wide"], ["g"], "expand"),
         node("Split", ["g"], ["h", "i"], "split", axis=1),
         node("Softmax", ["h"], ["j"], "softmax", axis=1),
         node("Where", ["mask", "j", "i"], ["k"], "where"),
         node("Cast", ["k"], ["l"], "cast", to=TensorProto.INT32),
         node("Cast", ["l"], ["y"], "back", to=TensorProto.FLOAT)],
        {"x": ["N", 2, 4, 4]}, {"y": 2},
        {"pads": ints([0, 0, 1, 1, 0, 0, 1, 1]), "scales": np.array([1, 1, 2, 2], np.float32),
         "starts": ints([1]), "ends": ints([9]), "axes": ints([2]), "zero": ints(0),
         "axis": ints([0]), "minus": ints([-1]), "wide": ints([1, 6]),
         "mask": np.array([True, False, True])})
    layers = model(
        [node("ConvTranspose", ["x", "w"], ["a"], "up", strides=[2, 2], group=1),
         node("BatchNormalization", ["a", "s", "s", "s", "v"], ["b"], "norm", epsilon=1e-3),
         node("AveragePool", ["b"], ["c"], "pool", kernel_shape=[2, 2], strides=[2, 2],
              ceil_mode=1, auto_pad="NOTSET"),
         node("PRelu", ["c", "slope"], ["d"], "prelu"),
         node("Clip", ["d", "low", "high"], ["e"], "clip"),
         node("GlobalMaxPool", ["e"], ["f"], "max"),
         node("Flatten", ["f"], ["g"], "flat"),
         node("MatMul", ["g", "m"], ["h"], "product"),
         node("Sum", ["h", "h", "bias"], ["i"], "sum"),
         node("Constant", [], ["two"], "two", value=numpy_helper.from_array(np.float32([2]), "t")),
         node("Pow", ["i", "two"], ["j"], "pow"),
         node("Greater", ["j", "bias"], ["k"], "greater"),
         node("Not", ["k"], ["y"], "not")],
        {"x": ["N", 2, 3, 3]}, {"y": 2},
        {"w": weights(2, 3, 2, 2), "s": np.ones(3, np.float32), "v": np.ones(3, np.float32),
         "slope": weights(3, 1, 1), "low": np.float32(-1), "high": np.float32(2),
         "m": weights(3, 4), "bias": weights(4)}, types={"y": TensorProto.BOOL})
    old = model(
        [node("Upsample", ["x", "scales"], ["a"], "up", mode="nearest"),
         node("MaxPool", ["a"], ["b"], "pool", kernel_shape=[3, 3], pads=[1, 1, 1, 1],
              dilations=[1, 1]),
         node("LeakyRelu", ["b"], ["c"], "leaky", alpha=0.1),
         node("Squeeze", ["c"], ["d"], "squeeze", axes=[1]),
         node("Softplus", ["d"], ["e"], "soft"), node("Elu", ["e"], ["f"], "elu"),
         node("HardSigmoid", ["f"], ["g"], "hard"), node("Identity", ["g"], ["h"], "same"),
         node("Gemm", ["m", "w", "c1"], ["i"], "gemm", transB=1, alpha=0.5, beta=2.0),
         node("ReduceMax", ["h"], ["y"], "max", axes=[1, 2], keepdims=0)],
        {"x": ["N", 1, 3, 3], "m": ["N", 4]}, {"y": 1, "i": 2},
        {"scales": np.array([1, 1, 2, 2], np.float32), "w": weights(3, 4), "c1": weights(3)},
        opset=9)
    oldest = model(
        [node("Add", ["c", "c"], ["y"], "sum"),
         node("BatchNormalization", ["b", "s", "s", "s", "v"], ["c"], "norm", spatial=1),
         node("Upsample", ["a"], ["b"], "up", scales=[1.0, 1.0, 2.0, 2.0], mode="nearest"),
         node("Relu", ["x"], ["a"], "relu")],
        {"x": ["N", 2, 3, 3]}, {"y": 4}, {"s": np.ones(2, np.float32), "v": np.ones(2, np.float32)},
        opset=7)
    newest = model(
        [node("SpaceToDepth", ["x"], ["a"], "blocks", blocksize=2, mode="DCR"),
         node("Cast", ["a"], ["y"], "cast", to=TensorProto.FLOAT, round_mode="up")],
        {"x": ["N", 2, 4, 4]}, {"y": 4}, opset=onnx.defs.onnx_opset_version())
    return [proto.SerializeToString() for proto in (
        small(), with_metadata, layout, layers, old, oldest, newest, sampled(), choosing(),
        texts(), _indexing())]


def _indexing() -> onnx.ModelProto:
    """Returns a network of operators that become others, and of what follows from shapes."""
    node = helper.make_node

    return model(
        [node("Tile", ["x", "repeats"], ["tiled"], "tile"),
         node("Trilu", ["tiled", "one"], ["upper"], "trilu", upper=1),
         node("GatherND", ["upper", "places"], ["slices"], "nd"),
         node("ScatterND", ["slices", "rows", "updates"], ["replaced"], "scatter"),
         node("GatherElements", ["replaced", "columns"], ["chosen"], "elements", axis=2),
         node("Einsum", ["chosen", "w"], ["summed"], "einsum", equation="abc,cde->daeb"),
         node("CumSum", ["summed", "one"], ["sums"], "cumsum", exclusive=1),
         node("Mod", ["sums", "two"], ["rest"], "mod", fmod=1),
         node("Resize", ["upper", "", "", "size"], ["wide"], "cubic", mode="cubic",
              coordinate_transformation_mode="half_pixel", cubic_coeff_a=-0.5),
         node("Shape", ["wide"], ["shape"], "shape", start=1),
         node("ReduceProd", ["shape"], ["count"], "count", keepdims=0),
         node("Equal", ["count", "expected"], ["same"], "same"),
         node("If", ["same"], ["branched"], "if",
              then_branch=part([node("Relu", ["wide"], ["then"], "then")], [], ["then"]),
              else_branch=part([node("Neg", ["wide"], ["else"], "else")], [], ["else"])),
         node("ReduceLogSumExp", ["branched", "axes"], ["log"], "log", keepdims=0),
         node("TopK", ["log", "k"], ["y", "order"], "top", axis=1),
         node("ArgMin", ["rest"], ["least"], "least", axis=3, keepdims=0)],
        {"x": ["N", 2, 4, 4]}, {"y": 2, "order": 2, "least": 3},
        {"repeats": np.array([1, 1, 2, 1]), "one": np.array(1),
         "places": np.array([[0, 1], [0, 0]]), "rows": np.array([[1]]),
         "updates": weights(1, 8, 4), "columns": np.ones((2, 8, 2), int),
         "w": weights(2, 3, 2), "two": np.float32(2), "size": np.array([1, 2, 5, 6]),
         "expected": np.array(60), "axes": np.array([2, 3]), "k": np.array([2])}, opset=18,
        types={"order": TensorProto.INT64, "least": TensorProto.INT64})


def external_files() -> list[dict[str, bytes]]:
    """Returns networks whose weights lie in a file beside them."""
    files = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.onnx"
        data = path.with_name("w.bin")
        for content in onnx_files():
            # what is there would be appended to
            data.unlink(missing_ok=True)
            onnx.save_model(onnx.ModelProto.FromString(content), path, save_as_external_data=True,
                            location=data.name, size_threshold=0)
            files.append({"file.onnx": path.read_bytes(),
                          **({data.name: data.read_bytes()} if data.exists() else {})})
    return files


def darknet_files() -> list[dict[str, bytes]]:
    """Returns small networks of Darknet with their weights."""
    joints = (net(8, 8) + conv(4) + section("maxpool", size=2, stride=2) + conv(4, 1)
              + section("shortcut", from_="-2", activation="linear") + section("upsample", stride=2)
              + section("route", layers="-1,0", groups=2, group_id=1) + section("reorg", stride=2)
              + conv(4, activation="mish") + head(1))
    classes = (net(8, 8) + conv(4, 3, 2, "swish") + section("avgpool")
               + section("connected", output=4, activation="relu") + section("dropout")
               + section("scale_channels", from_=0) + section("avgpool")
               + section("softmax", groups=1) + section("cost", type="sse"))
    files = []
    with tempfile.TemporaryDirectory() as folder:
        for text in (joints, classes):
            path = Path(folder) / "net.weights"
            random_weights(path, text, images_for(text))
            files.append({"net.cfg": text.encode(), "net.weights": path.read_bytes()})
    return files


def plan_files() -> list[bytes]:
    """Returns saved plans of the host."""
    contents = []
    with tempfile.TemporaryDirectory() as folder:
        networks = [*onnx_files()[:3], *(proto.SerializeToString()
                                         for proto in (sampled(), choosing()))]
        for index, proto in enumerate(networks):
            path = Path(folder) / f"{index}.onnx"
            path.write_bytes(proto)
            plan = gossamer.compile(str(path), "host")
            plan(*[np.zeros([2 if size is None else size for size in info.shape], np.float32)
                   for info in plan.inputs])
            plan.save(path.with_suffix(".plan"))
            contents.append(path.with_suffix(".plan").read_bytes())
    return contents


def checkpoints() -> list[bytes]:
    """Returns checkpoints of the training that a target resumes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c"
        train(path)
        return [path.read_bytes()]


def train(path: Path, epochs: int = 2, resume: bool = False) -> MLP:
    """Trains a network with a checkpoint that has all that one can have."""
    network = MLP.published((4, 6, 3), device="host", momentum=0.6, batch=2, epochs=epochs, seed=1,
                            keep="best")
    return network.fit(*blobs(), validation=blobs(), checkpoint=path, resume=resume)


def blobs() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((12, 4)).astype(np.float32)
    return x, np.arange(12) % 3


def measurements() -> list[bytes]:
    """Returns files of measurements."""
    line = Measurement("numpy", "a 1", ("NCHW float32",), ("NCHW float32",), "fp32", 1.5, 1.0, 2.0,
                       error=1e-7, samples=9, weights="ab")
    content = {"format": tuning_file.FORMAT, "version": tuning_file.VERSION,
               "device": {"api": "host", "description": "d", "compute_units": 2},
               "sections": [{"made_by": {"driver": "", "toolkit": "", "gossamer": "0.1"},
                             "candidates": {
                                 tuning_file.candidate_key("00ff", line):
                                     tuning_file.encode("conv2d 1x2", "ab", line)},
                             "plans": {"k": tuning_file.encode_plan("p", Timing(1.0, 1.0, 2.0, 5))},
                             "checks": {"c": "conv2d"}}]}
    return [json.dumps(content).encode()]


def npy_files() -> list[bytes]:
    return [_npy(array) for array in (weights(2, 3, 6, 5), np.arange(12), np.asfortranarray(
        weights(3, 4)), np.array(["a", "bc"]))]


def npz_files() -> list[bytes]:
    """Returns labelled samples in archives, packed and not."""
    contents = []
    for save in (np.savez, np.savez_compressed):
        for names in (("x", "y"), ("x_train", "y_train", "x_test", "y_test")):
            file = io.BytesIO()
            save(file, **dict(zip(names, (SAMPLES, LABELS) * 2, strict=False)))
            contents.append(file.getvalue())
    return contents


def csv_files() -> list[bytes]:
    lines = [",".join(map(str, [label, *sample.reshape(-1)[:6]]))
             for label, sample in zip(LABELS, SAMPLES, strict=True)]
    words = [f"{'abc'[label]};{sample[0, 0] / 7:.3f};{sample[0, 1]}"
             for label, sample in zip(LABELS, SAMPLES, strict=True)]
    return ["\n".join(text).encode() + b"\n" for text in
            (lines, ["label,a,b,c,d,e,f", *lines], words,
             [line.replace(",", "\t") for line in lines])]


def idx_pairs() -> list[dict[str, bytes]]:
    images = bytes((0, 0, 8, 3)) + np.array([12, 8, 8], ">u4").tobytes() + SAMPLES.tobytes()
    labels = bytes((0, 0, 8, 1)) + np.array([12], ">u4").tobytes() + bytes(map(int, LABELS))
    return [{"file-images-idx3-ubyte": images, "file-labels-idx1-ubyte": labels}]


def pictures(form: str) -> list[bytes]:
    """Returns photos of one format, of several modes."""
    contents = []
    for mode in ("RGB", "L", "P", "RGBA", "CMYK", "1", "I;16"):
        image = (Image.fromarray(PIXELS[:, :, 0].astype(np.uint16) * 257) if mode == "I;16"
                 else Image.fromarray(PIXELS).convert(mode))
        file = io.BytesIO()
        try:
            image.save(file, form)
        except (OSError, ValueError):
            continue  # the format has no such mode
        contents.append(file.getvalue())
    return contents


def result_rows() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        row_files.append_rows(path, [row("gossamer", 10.0), row("torch", 20.0, notice="busy")])
        return [path.read_bytes()]


def market_files() -> list[bytes]:
    lines = [f"{1 + index % 3} {1 + index} {index / 3:.3f}" for index in range(8)]
    heading = ["%%MatrixMarket matrix coordinate real general", "% text", "3 8 8"]
    return ["\n".join([*heading, *lines, ""]).encode(),
            b"%%MatrixMarket matrix coordinate pattern general\n2 2 1\n1 2\n"]


SMTX = b"3, 8, 4\n0 2 2 4\n1 7 0 5\n"


def smtx_archives() -> list[bytes]:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in ("a.smtx", "folder/b.smtx", "README"):
            info = tarfile.TarInfo(name)
            info.size = len(SMTX)
            archive.addfile(info, io.BytesIO(SMTX))
    return [gzip.compress(file.getvalue(), mtime=0)]


def layer_tables() -> list[bytes]:
    return ["\n".join([HEADING, *LINES, ""]).encode()]


def packed(contents: list[bytes]) -> list[bytes]:
    return [gzip.compress(content, mtime=0) for content in contents]


def shares() -> list[bytes]:
    return [b"layer,sparsity\nconv1,0.9\n\"conv,2\",0.5\n# text\nfc,0\n"]


def shares_json() -> list[bytes]:
    return [b'{"conv1": 0.9, "fc": 0.5}']


def entries() -> list[bytes]:
    """Returns entries of the kernel cache, as bytes without their hash."""
    return [b"kernel" * 20, zlib.compress(b"x" * 100)]


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()
