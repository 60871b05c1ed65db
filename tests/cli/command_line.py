"""Call the command line from tests, and make a small network and a photo for it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from PIL import Image
from typer.testing import CliRunner

from gossamer.cli.app import app

RNG = np.random.default_rng(0)
PHOTO = RNG.integers(0, 256, (12, 10, 3), dtype=np.uint8)
QUIET_MAIN = ("from gossamer import measure; from gossamer.cli.console import main; "
              "measure.SCATTERED = float('inf'); main()")
"""The command line as a Python program that says nothing of what else runs."""
WEIGHTS = {"w": RNG.standard_normal((4, 3, 3, 3)), "v": RNG.standard_normal((5, 4)),
           "b": RNG.standard_normal(5)}


def save_network(path, *, nodes=None, inputs=("N", 3, 8, 8), outputs=(("y", ["N", 5]),),
                 weights=WEIGHTS, dtype=np.float32):
    """Save a network of one input, by default with five classes for 8x8 photos."""
    nodes = nodes or [
        helper.make_node("Conv", ["x", "w"], ["c"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "v", "b"], ["y"], transB=1),
    ]
    number_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes, "tiny", [helper.make_tensor_value_info("x", number_type, inputs)],
        [helper.make_tensor_value_info(name, number_type, shape)
         for name, shape in outputs],
        [numpy_helper.from_array(array.astype(dtype), name)
         for name, array in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def save_photo(path):
    Image.fromarray(PHOTO).save(path)
    return path


def gossamer_cli(*words, env=None):
    return CliRunner().invoke(app, [str(word) for word in words], env=env)


def succeeds(*words):
    result = gossamer_cli(*words)
    assert result.exit_code == 0, result.output
    return result


def fails(code, *words):
    """Return the one line on stderr of a command that must fail."""
    result = gossamer_cli(*words)
    assert result.exit_code == code, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ") and "Traceback" not in result.output
    assert not result.stdout
    return line


def json_of(*words):
    """Return what a command prints with --json."""
    return json.loads(succeeds(*words, "--json").stdout)


def run_on(network, x, *words):
    """Run a network on an array on the host; return the command's result and the output. Both
    arrays are files beside the network."""
    given, written = (network.with_name(name) for name in ("x.npy", "y.npy"))
    np.save(given, x)
    result = succeeds("run", network, "--device", "host", "--input", given, "--output", written,
                      *words)
    return result, np.load(written)


def script(*words, **options):
    """Run the console script in another process."""
    command = Path(sys.executable).with_name("gossamer")
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run([command, *map(str, words)], text=True, **streams)
