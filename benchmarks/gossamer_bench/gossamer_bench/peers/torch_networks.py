"""The networks of the suites as users of PyTorch write them; needs torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from gossamer.model.zoo import INVERTED_RESIDUALS


def _convolution(into: int, out: int, size: int = 1, stride: int = 1,
                 groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(into, out, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out), nn.ReLU6(inplace=True))


class _InvertedResidual(nn.Module):
    def __init__(self, into: int, out: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = into * expansion
        self.adds = stride == 1 and into == out
        self.conv = nn.Sequential(
            *([_convolution(into, hidden)] if expansion != 1 else []),
            _convolution(hidden, hidden, 3, stride, hidden),
            nn.Conv2d(hidden, out, 1, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x) if self.adds else self.conv(x)


class MobileNetV2(nn.Module):
    """MobileNetV2 at width 1, with tensors named as in torchvision.

    Mark Sandler, Andrew Howard, Menglong Zhu, Andrey Zhmoginov and Liang-Chieh Chen: MobileNetV2:
    Inverted Residuals and Linear Bottlenecks. CVPR 2018.
    """

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [_convolution(3, 32, 3, 2)]
        width = 32
        for expansion, channels, blocks, stride in INVERTED_RESIDUALS:
            for block in range(blocks):
                layers.append(_InvertedResidual(width, channels, 1 if block else stride,
                                                expansion))
                width = channels
        layers.append(_convolution(width, 1280))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


def mobilenet_v2(constants: Mapping[str, np.ndarray]) -> nn.Module:
    """Returns MobileNetV2 with these weights. Raises RuntimeError where the weights do not fit."""
    return with_weights(MobileNetV2(), constants)


class _FusedConvolution(nn.Sequential):
    """A convolution and its ReLU, which one call of cuDNN computes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        conv: nn.Conv2d = self[0]  # type: ignore[assignment]
        return torch.cudnn_convolution_relu(
            x, conv.weight, conv.bias, conv.stride, conv.padding,  # type: ignore[arg-type]
            conv.dilation, conv.groups)


def convolution_layer(constants: Mapping[str, np.ndarray], stride: int, pad: int, groups: int,
                      fused: bool) -> nn.Module:
    """Returns a convolution with bias and ReLU. fused: whether one call computes the whole layer;
    only CUDA has such a call."""
    out, into, size, _ = constants["0.weight"].shape
    form = _FusedConvolution if fused else nn.Sequential
    return with_weights(form(nn.Conv2d(into * groups, out, size, stride, pad, groups=groups),
                             nn.ReLU(inplace=True)), constants)


def linear_layer(constants: Mapping[str, np.ndarray], relu: bool) -> nn.Module:
    """Returns a fully connected layer, with a bias where the constants have one."""
    out, into = constants["0.weight"].shape
    layer = nn.Linear(into, out, bias="0.bias" in constants)
    return with_weights(nn.Sequential(layer, *[nn.ReLU(inplace=True)] * relu), constants)


def with_weights(network: nn.Module, constants: Mapping[str, np.ndarray]) -> nn.Module:
    """Loads the tensors into the network by their names and returns it in evaluation mode. Raises
    RuntimeError where a tensor is missing or unexpected."""
    state = {name: torch.from_numpy(np.array(array)) for name, array in constants.items()}
    state.update({name: tensor for name, tensor in network.state_dict().items()
                  if name.endswith("num_batches_tracked")})
    network.load_state_dict(state)
    return network.eval().requires_grad_(False)
