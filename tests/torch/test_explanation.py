"""explain says what would run where, and which layers are thin."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import gossamer
from gossamer.device.host import HostDevice
from gossamer.torch.explanation import ExplainedLayer, Explanation
from tests.torch.single_modules import Function
from tests.torch.small import images, residual
from tests.torch.test_thin_modules import BinaryConv, SignWithGradient


def thin_module():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 32, 3), nn.Conv2d(32, 32, 3, groups=32), nn.ReLU(),
                           nn.Conv2d(32, 32, 1), BinaryConv(SignWithGradient.apply)).eval()
    with torch.no_grad():
        # half of the weights of each filter: channels without any would be left out
        module[3].weight[::2, ::2] = 0
        module[3].weight[1::2, 1::2] = 0
    return module


def test_thin_layers_are_found():
    found = gossamer.explain(thin_module(), images())
    assert [layer.thin for layer in found.layers] == ["", "depthwise", "zeros", "signs"]
    assert found.batch == 2 and found.expected_us > 0 and not found.fixed
    lines = str(found).splitlines()
    assert lines[0].startswith("4 layers at batch 2 on host; expected time about ")
    assert lines[1:4] == ["1 layer depthwise", "1 layer with zeros among the weights",
                          "1 layer with binary or ternary values, computable on bits"]
    assert "density 0.50 zeros" in str(found)


def test_network_that_is_not_thin():
    assert "gossamer is made for thin networks" in str(gossamer.explain(residual(), images()))


@pytest.mark.parametrize(("forward", "parts"), [
    (lambda x: torch.ones(3), []),
    (lambda x: x.nonzero(), ["the end of the network: ONNX Runtime computes 2 nodes: NonZero"]),
], ids=["a constant", "a shape that depends on the data"])
def test_networks_without_layers(forward, parts):
    found = gossamer.explain(Function(forward).eval(), torch.randn(2, 4))
    assert not found.layers and len(found.parts) == len(parts)
    lines = str(found).splitlines()
    assert lines[0].startswith("0 layers at batch 2 on host")
    assert all(any(line.startswith(part) for line in lines) for part in parts)


def test_nothing_is_compiled(monkeypatch):
    compiled = Mock(side_effect=AssertionError("something was compiled or run"))
    monkeypatch.setattr(HostDevice, "compile", compiled)
    monkeypatch.setattr("gossamer.plan.plan.Context", compiled)
    gossamer.explain(residual(), images())


def test_the_40_layers_with_the_longest_times_are_listed():
    layers = [ExplainedLayer(f"layer{us}", "conv2d", "3x3", "host", "direct", None, "", us)
              for us in range(1, 43)]
    lines = str(Explanation("host", 2, layers)).splitlines()
    assert lines[0] == ("42 layers at batch 2 on host; expected time about 903.0 us (an estimate; "
                        "nothing was measured)")
    rows = [line for line in lines if line.startswith("layer")]
    assert [row.split()[0] for row in rows] == [f"layer{us}" for us in range(42, 2, -1)]
