"""Lists the files of gossamer that a small network uses.

    python tools/files_entered.py --list

It counts the files with functions that are called until a network of three layers returns its first
result on the host, and during the fifth call of its plan.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = str(ROOT / "gossamer") + "/"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the names of the files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "three.onnx"
        onnx.save(three_layers(), path)
        x = np.random.default_rng(0).standard_normal((1, 3, 16, 16), dtype=np.float32)
        sys.path.insert(0, str(ROOT))

        def first_result() -> Any:
            import gossamer

            plan = gossamer.compile(path, device="host")
            plan(x)
            return plan

        plan, files = entered(first_result)
        show("to the first result", files, arguments.list)
        for _ in range(3):
            plan(x)
        show("in the fifth call", entered(lambda: plan(x))[1], arguments.list)


def three_layers() -> onnx.ModelProto:
    """Return a convolution, a ReLU and a fully connected layer."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 3, 3, 3)), "m": rng.standard_normal((8 * 196, 10))}
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["b"]),
             helper.make_node("Flatten", ["b"], ["c"]),
             helper.make_node("MatMul", ["c", "m"], ["y"])]
    graph = helper.make_graph(
        nodes, "three layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(array.astype(np.float32), name)
         for name, array in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def entered(function: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Return a function's result, and gossamer's files that it called.

    Code that runs during an import, such as the body of a class, does not count as a call.
    """
    files = set()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and not in_import(frame):
            files.add(code.co_filename)

    sys.setprofile(profile)
    try:
        result = function()
    finally:
        sys.setprofile(None)
    return result, sorted(files)


def in_import(frame: FrameType | None) -> bool:
    """Return whether a function is called during an import."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(PACKAGE):
            return True
        frame = frame.f_back
    return False


def show(when: str, files: list[str], with_names: bool) -> None:
    lengths = {name.removeprefix(str(ROOT) + "/"): len(Path(name).read_text().splitlines())
               for name in files}
    longest = max(lengths, key=lambda name: lengths[name])
    print(f"{when}: functions of {len(files)} files, the longest {longest} with "
          f"{lengths[longest]} lines")
    if with_names:
        print("\n".join(f"  {length:4} {name}" for name, length in lengths.items()))


if __name__ == "__main__":
    main()
