"""The worked example of the documentation works."""

import importlib.util
import re
from pathlib import Path

import pytest

from gossamer.expression import apply
from gossamer.ops.algorithm import Algorithm, Epilogue
from gossamer.ops.conv2d import OP
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.op import Op
from tests.ops import harness

PAGE = Path(__file__).resolve().parents[1] / "docs" / "add-an-algorithm.md"


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
