"""A training loop with validation prints the same numbers with and without gossamer."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gossamer
from gossamer.torch.backend import backend


class Network(nn.Module):
    """A network with batch norm, dropout, a counter in a buffer and gradient checkpointing."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(8, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.calls += 1
        x = self.stem(x)
        x = x + (checkpoint(self.block, x, use_reentrant=False) if self.training
                 else self.block(x))
        return self.head(x.mean((2, 3)))


def printed(way):
    """Returns the numbers that the loop prints. way: the backend of torch.compile, "optimize", or
    None for eager torch."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    net = Network()
    average = torch.optim.swa_utils.AveragedModel(
        net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    x, y = torch.randn(48, 1, 8, 8), torch.arange(48) % 3
    validated = [net, average.module]
    if way in ("eager", backend):
        validated = [torch.compile(module, backend=way) for module in validated]
    trained, numbers = validated[0], []
    for _ in range(20):
        net.train()
        for rows in torch.randperm(36).split(12):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(trained(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            average.update_parameters(net)
        net.eval()
        average.module.eval()
        if way == "optimize" and not numbers:
            validated = [gossamer.optimize(module, x[36:]) for module in validated]
        with torch.no_grad():
            losses = [nn.functional.cross_entropy(module(x[36:]), y[36:]).item()
                      for module in validated]
        numbers += [loss.item(), *losses, float(net.calls), torch.rand(()).item()]
    return numbers, net.state_dict()


@pytest.mark.parametrize(("way", "reference"), [(backend, "eager"), ("optimize", None)])
def test_what_a_training_loop_prints(way, reference):
    """Dynamo itself draws other random numbers than eager torch, in checkpoints with dropout."""
    with warnings.catch_warnings(action="ignore"):
        numbers, state = printed(way)
        expected, expected_state = printed(reference)
    assert numbers == pytest.approx(expected, rel=1e-4, abs=1e-6)
    torch.testing.assert_close(state, expected_state, rtol=1e-3, atol=1e-5)
