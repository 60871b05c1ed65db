"""torch.compile with the backend gossamer: whole graphs, parts of graphs, and what is left."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import gossamer
from gossamer.errors import GossamerWarning
from gossamer.torch import backend as backend_module
from gossamer.torch.backend import backend, reports
from tests.torch.single_modules import LARGEST_ERROR, LEFT, Function, eager, error, table
from tests.torch.small import images, residual

ROOT = Path(gossamer.__file__).parents[1]
MODULES = table()
TESTED = dict.fromkeys([*list(MODULES)[::7], *list(LEFT)[::2]])
"""The modules that are compiled here; `python -m tests.torch.single_modules` compiles all."""


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    reports.clear()
    yield
    torch._dynamo.reset()


def is_right(compiled, module, *inputs):
    return error(eager(compiled, *inputs), eager(module, *inputs)) < LARGEST_ERROR


class Mixed(nn.Module):
    """A network with an operator in its middle that gossamer has not."""

    def __init__(self):
        super().__init__()
        self.net = residual()
        self.head = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4), nn.Tanh())

    def forward(self, x):
        x = self.net(x)[:, :4]
        x = x * torch.special.bessel_j0(x)
        return self.head(x)


def test_whole_graph_is_one_part(module):
    compiled = torch.compile(module, backend=backend)
    assert is_right(compiled, module, images())
    assert [(report.parts, report.left) for report in reports] == [(1, [])]


@pytest.mark.parametrize("dynamic", [None, True])
def test_batch_sizes_make_no_second_plan(module, dynamic):
    compiled = torch.compile(module, backend=backend, dynamic=dynamic)
    for batch in (2, 3, 5, 1, 4):
        assert is_right(compiled, module, images(batch))
    assert len(reports) == 1


def test_unsupported_operator_is_left_to_torch():
    module = Mixed().eval()
    compiled = torch.compile(module, backend=backend)
    for batch in (2, 3):
        assert is_right(compiled, module, images(batch))
    report = reports[0]
    assert report.parts == 2
    names = [left.operator for left in report.left]
    assert "special_bessel_j0" in names and "conv2d" not in names and "linear" not in names
    left = report.left[names.index("special_bessel_j0")]
    assert "test_backend.py:" in left.line and 0 < left.share < 1
    assert f"left to torch: special_bessel_j0 at {left.line[4:]}" in str(report)


def test_small_graphs_are_left_to_torch():
    module = Function(lambda x: torch.relu(x) + 1).eval()
    compiled = torch.compile(module, backend=backend)
    assert is_right(compiled, module, images())
    assert [report.taken for report in reports] == [0]
    assert "fewer than 3" in reports[0].left[0].reason
    torch._dynamo.reset()
    compiled = torch.compile(module, backend=backend, options={"least_operators": 1})
    assert is_right(compiled, module, images())
    assert reports[1].taken == 2


def test_gradients_are_left_to_torch(module):
    compiled = torch.compile(module, backend=backend)
    with pytest.warns(GossamerWarning, match=r"computes no gradients.*torch\.no_grad\(\)"):
        compiled(images()).sum().backward()
    assert module.head.weight.grad is not None and not reports


def test_unknown_options_are_refused():
    for options, message in (
            ({"speed": 3}, "the backend gossamer has no option 'speed'"),
            ({"effort": "quik"}, "effort 'quik': .*did you mean 'quick'"),
            ({"precision": "fp61", "effort": "quick"}, "precision 'fp61': "),
            ({"tolerance": "1e-3"}, "tolerance '1e-3': expected a number"),
            ({"least_operators": 1.5}, "least_operators 1.5: ")):
        compiled = torch.compile(residual(), backend=backend, options=options)
        with pytest.raises(Exception, match=message):
            eager(compiled, images())


def test_entry_point_names_the_backend(module, tmp_path, monkeypatch):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["torch_dynamo_backends"]
    assert points == {"gossamer": "gossamer.torch.backend:backend"}
    info = tmp_path / "gossamer_backend-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gossamer-backend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[torch_dynamo_backends]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()))
    monkeypatch.syspath_prepend(tmp_path)
    registry = torch._dynamo.backends.registry
    if hasattr(registry._discover_entrypoint_backends, "cache_clear"):
        registry._discover_entrypoint_backends.cache_clear()
    registry._discover_entrypoint_backends()
    assert is_right(torch.compile(module, backend="gossamer"), module, images())
    assert len(reports) == 1
    assert torch._dynamo.lookup_backend("gossamer") is backend_module.backend


@pytest.mark.slow
@pytest.mark.parametrize("name", TESTED)
def test_single_modules(name):
    module, inputs = MODULES[name]
    compiled = torch.compile(module, backend=backend, options={"least_operators": 1})
    assert is_right(compiled, module, *inputs)
    taken = sum(report.taken for report in reports)
    assert bool(taken) is (name not in LEFT), f"{taken} operators are computed by gossamer"
