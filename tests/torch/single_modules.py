"""Networks of one module each, by name, as users of PyTorch write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Function(nn.Module):
    """A module that computes a function, with the weights that it is given."""

    def __init__(self, function: Callable[..., Any], **weights: Any) -> None:
        super().__init__()
        self._function = function
        for name, weight in weights.items():
            self.register_parameter(name, nn.Parameter(weight))

    def forward(self, *inputs: Any) -> Any:
        return self._function(*inputs, **dict(self.named_parameters()))


class FirstResult(nn.Module):
    """A module of which only the first result is returned."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__()
        self.module = module
        self._options = options

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs, **self._options)[0]


class SelfAttention(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.attention(x, x, x, need_weights=False)[0]


def image(*shape: int) -> Any:
    return torch.randn(2, *(shape or (8, 10, 10)))


def table() -> dict[str, tuple[nn.Module, tuple[Any, ...]]]:
    """Returns the networks, in evaluation mode, with an example of two images each."""
    torch.manual_seed(0)
    networks: dict[str, tuple[nn.Module, tuple[Any, ...]]] = {
        "conv2d": (nn.Conv2d(8, 12, 3, padding=1), (image(),)),
        "conv2d with strides": (nn.Conv2d(8, 12, 3, stride=2), (image(),)),
        "conv2d with dilation": (nn.Conv2d(8, 12, 3, dilation=2), (image(),)),
        "conv2d in groups": (nn.Conv2d(8, 12, 3, groups=4), (image(),)),
        "conv2d depthwise": (nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), (image(),)),
        "conv2d same": (nn.Conv2d(8, 12, 5, padding="same"), (image(),)),
        "conv1d": (nn.Conv1d(8, 12, 3), (image(8, 20),)),
        "conv_transpose2d": (nn.ConvTranspose2d(8, 4, 2, stride=2), (image(),)),
        "linear": (nn.Linear(32, 10), (image(32),)),
        "linear of sequences": (nn.Linear(16, 10), (image(5, 16),)),
        "bilinear products": (Function(lambda x, y: x @ y), (image(4, 5), image(5, 6))),
        "batch_norm1d": (nn.BatchNorm1d(16), (image(16),)),
        "batch_norm2d": (nn.BatchNorm2d(8), (image(),)),
        "layer_norm": (nn.LayerNorm(16), (image(5, 16),)),
        "group_norm": (nn.GroupNorm(2, 8), (image(),)),
        "instance_norm2d": (nn.InstanceNorm2d(8), (image(),)),
        "relu": (nn.ReLU(), (image(),)),
        "relu6": (nn.ReLU6(), (image(),)),
        "leaky_relu": (nn.LeakyReLU(0.1), (image(),)),
        "prelu": (nn.PReLU(8), (image(),)),
        "gelu": (nn.GELU(), (image(),)),
        "gelu tanh": (nn.GELU("tanh"), (image(),)),
        "silu": (nn.SiLU(), (image(),)),
        "mish": (nn.Mish(), (image(),)),
        "hardswish": (nn.Hardswish(), (image(),)),
        "hardsigmoid": (nn.Hardsigmoid(), (image(),)),
        "elu": (nn.ELU(), (image(),)),
        "softplus": (nn.Softplus(), (image(),)),
        "sigmoid": (nn.Sigmoid(), (image(),)),
        "tanh": (nn.Tanh(), (image(),)),
        "softmax": (nn.Softmax(dim=1), (image(16),)),
        "log_softmax": (nn.LogSoftmax(dim=-1), (image(5, 16),)),
        "max_pool2d": (nn.MaxPool2d(3, 2, 1), (image(),)),
        "max_pool2d ceil": (nn.MaxPool2d(3, 2, ceil_mode=True), (image(),)),
        "avg_pool2d": (nn.AvgPool2d(2), (image(),)),
        "adaptive_avg_pool2d": (nn.AdaptiveAvgPool2d(1), (image(),)),
        "adaptive_avg_pool2d 5x5": (nn.AdaptiveAvgPool2d(5), (image(),)),
        "upsample nearest": (nn.Upsample(scale_factor=2), (image(),)),
        "upsample bilinear": (nn.Upsample(scale_factor=2, mode="bilinear"), (image(),)),
        "pixel_shuffle": (nn.PixelShuffle(2), (image(),)),
        "zero_pad2d": (nn.ZeroPad2d(1), (image(),)),
        "reflection_pad2d": (nn.ReflectionPad2d(1), (image(),)),
        "flatten": (nn.Sequential(nn.Flatten(), nn.Linear(800, 3)), (image(),)),
        "embedding": (nn.Embedding(20, 6), (torch.randint(0, 20, (2, 7)),)),
        "lstm": (FirstResult(nn.LSTM(8, 12, batch_first=True)), (image(5, 8),)),
        "lstm both ways": (FirstResult(nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True)),
                           (image(5, 8),)),
        "gru": (FirstResult(nn.GRU(8, 12, batch_first=True)), (image(5, 8),)),
        "multihead_attention": (SelfAttention(), (image(5, 16),)),
        "transformer_encoder_layer": (nn.TransformerEncoderLayer(16, 4, 32, batch_first=True),
                                      (image(5, 16),)),
        "scaled_dot_product_attention": (Function(F.scaled_dot_product_attention), (
            image(4, 5, 8), image(4, 5, 8), image(4, 5, 8))),
        "channel shuffle": (nn.ChannelShuffle(2), (image(),)),
        "chunks": (Function(lambda x: torch.mul(*x.chunk(2, dim=1))), (image(),)),
        "concatenation": (Function(lambda x, y: torch.cat([x, y], dim=1)), (image(), image())),
        "mean and maximum": (Function(lambda x: x.mean((2, 3)) + x.amax((2, 3))), (image(),)),
        "binary convolution": (Function(lambda x, weight: F.conv2d(
            torch.sign(x), torch.sign(weight), padding=1), weight=torch.randn(8, 8, 3, 3)),
            (image(),)),
    }
    return {name: (module.eval(), inputs) for name, (module, inputs) in networks.items()}
