"""Networks of torchvision in one line, equal to eager torch, in gossamer's own layers."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("torchvision.models", exc_type=(ImportError, RuntimeError))

import torch
from torchvision import models

import gossamer
from gossamer_bench.modules import with_statistics
from tests.tolerances import normalised_error


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "shufflenet_v2_x0_5",
                                  "efficientnet_b0"])
def test_network_in_one_line(name):
    torch.manual_seed(0)
    module = with_statistics(getattr(models, name)(weights=None), torch.randn(8, 3, 64, 64))
    fast = gossamer.optimize(module, torch.randn(1, 3, 64, 64))
    for batch in (1, 3):
        x = torch.randn(batch, 3, 64, 64)
        with torch.no_grad():
            expected = module(x)
        assert normalised_error(fast(x).numpy(), expected.numpy()) < 1e-4
    assert "onnx_part" not in {row["op"] for row in fast.report(3).rows}
