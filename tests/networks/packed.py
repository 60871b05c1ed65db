"""Packs exported networks, so that they are small enough to be carried to another machine.

    python -m tests.networks.export FOLDER
    python -m tests.networks.packed FOLDER OUT

The second command writes OUT/EXPORTER/LIBRARY-NAME.onnx.gz for every .onnx file of FOLDER that is
not packed yet: without its large weights, and without what PyTorch says of its sources. restored()
draws such weights again, with the same share of zeros and the same mean, deviation and range, by a
seed of their name. Files that are small with their weights keep them.
"""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from gossamer.plan.candidate import counted
from tests.networks.rows import program

SUFFIX = ".onnx.gz"
_KEY = "drawn weights"
_DRAWN = ("float32", "float16", "int8", "uint8")
_LEAST = 300
"""Tensors with fewer numbers keep them."""


def networks_in(folder: Path, only: str = "") -> list[Path]:
    """Returns the files of networks in a folder, packed or not, whose names hold a text."""
    return [path for path in sorted(folder.rglob("*.onnx*"))
            if path.name.endswith((".onnx", SUFFIX)) and only in str(path.relative_to(folder))]


def name_of(path: Path) -> str:
    """Returns the name of a network's file without its suffix."""
    return path.name.removesuffix(".gz").removesuffix(".onnx")


def pack(model: onnx.ModelProto, most_bytes: int = 0) -> bytes:
    """Returns the bytes of a packed file.

    most_bytes: where the file with all its weights is no larger, it keeps them.
    """
    small = onnx.ModelProto()
    small.CopyFrom(model)
    for node in small.graph.node:
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
    whole = gzip.compress(small.SerializeToString(), mtime=0) if most_bytes else b""
    if 0 < len(whole) <= most_bytes:
        return whole
    drawn = {}
    for tensor in small.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.size >= _LEAST and array.dtype.name in _DRAWN and np.isfinite(array).all() and (
                array.any()):
            drawn[tensor.name] = _distribution(array)
            for field in ("raw_data", "float_data", "int32_data"):
                tensor.ClearField(field)
    small.metadata_props.add(key=_KEY, value=json.dumps(drawn))
    return gzip.compress(small.SerializeToString(), mtime=0)


def _distribution(array: np.ndarray) -> dict[str, float]:
    numbers = array[array != 0].astype(np.float64)
    return {"zeros": 1 - numbers.size / array.size, "mean": numbers.mean(), "std": numbers.std(),
            "low": numbers.min(), "high": numbers.max()}


def restored(path: Path) -> onnx.ModelProto:
    """Returns the model of a file, packed or not. Raises ValueError where it has none."""
    try:
        model = (onnx.load_model_from_string(gzip.decompress(path.read_bytes()))
                 if path.suffix == ".gz" else onnx.load(str(path)))
    except Exception as error:
        raise ValueError(f"{path}: {error}; expected an ONNX file, or one that python -m "
                         "tests.networks.packed has written") from None
    notes = {entry.key: entry.value for entry in model.metadata_props}
    drawn = json.loads(notes.pop(_KEY, "{}"))
    for tensor in model.graph.initializer:
        if tensor.name in drawn:
            tensor.raw_data = _numbers(tensor, drawn[tensor.name]).tobytes()
    model.ClearField("metadata_props")
    helper.set_model_props(model, notes)
    return model


def _numbers(tensor: onnx.TensorProto, drawn: dict[str, Any]) -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(tensor.name.encode()))
    shape, dtype = tuple(tensor.dims), helper.tensor_dtype_to_np_dtype(tensor.data_type)
    numbers = drawn["mean"] + drawn["std"] * rng.standard_normal(shape, np.float32)
    numbers = np.clip(numbers, drawn["low"], drawn["high"])
    numbers[rng.random(shape, np.float32) < drawn["zeros"]] = 0
    return (numbers if dtype.kind == "f" else np.rint(numbers)).astype(dtype)


def main() -> int:
    parser = program("tests.networks.packed", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", metavar="TEXT",
                        help="pack only files whose path in the folder holds this")
    parser.add_argument("--whole-below", type=float, default=100, metavar="KB",
                        help="packed files up to this size keep their weights (default: 100)")
    options = parser.parse_args()
    files = [path for path in networks_in(options.folder, options.only) if path.suffix == ".onnx"]
    if not files:
        parser.error(f"no file {options.folder}/**/*{options.only}*.onnx; python -m "
                     "tests.networks.export writes some")
    packed = []
    for path in files:
        target = (options.out / path.relative_to(options.folder)).with_name(name_of(path) + SUFFIX)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(pack(restored(path), int(1e3 * options.whole_below)))
        packed.append(target)
    before, after = (sum(path.stat().st_size for path in paths) / 1e6 for paths in (files, packed))
    print(f"{counted(len(files), 'network')} of {before:.1f} MB, packed in {after:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
