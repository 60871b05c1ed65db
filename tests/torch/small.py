"""Small modules of PyTorch that several tests optimise."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.tolerances import normalised_error


class Residual(nn.Module):
    """A convolutional network with a residual block, batch norm and tied statistics."""

    def __init__(self, channels: int = 8, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.block = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(),
                                   nn.Conv2d(channels, channels, 3, padding=1))
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm(self.stem(x)))
        return self.head(torch.relu(x + self.block(x)).mean((2, 3)))


def residual(seed: int = 0) -> Residual:
    """Returns the network in evaluation mode, with statistics other than those of a new one."""
    torch.manual_seed(seed)
    module = Residual()
    module.norm.running_mean.normal_()
    module.norm.running_var.uniform_(0.5, 2)
    return module.eval()


def images(batch: int = 2, seed: int = 1) -> Any:
    return torch.randn(batch, 3, 12, 12, generator=torch.Generator().manual_seed(seed))


def eager(module: Any, *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        return module(*args, **kwargs)


def same(fast: Any, module: Any, x: Any) -> bool:
    """Returns whether two modules give the same, but for rounding."""
    return normalised_error(eager(fast, x).numpy(), eager(module, x).numpy()) < 1e-5
