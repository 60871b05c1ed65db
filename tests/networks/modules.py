"""MODULES: small networks of PyTorch, each about one of its layers or functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class _Function(nn.Module):  # type: ignore[misc]
    """A network that is one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *values: Any) -> Any:
        return self.function(*values)


class _Attention(nn.Module):  # type: ignore[misc]
    """Attention of the sequence to itself; masked: each element sees those before it."""

    def __init__(self, *, masked: bool) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(16, 4, batch_first=True)
        self.masked = masked

    def forward(self, x: Any) -> Any:
        length = x.shape[1]
        mask = torch.triu(torch.ones(length, length, dtype=torch.bool), 1) if self.masked else None
        return self.layer(x, x, x, attn_mask=mask, need_weights=False)[0]


class _Recurrent(nn.Module):  # type: ignore[misc]
    """The sequence of a recurrent layer's outputs."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return self.layer(x)[0]


class _Embedded(nn.Module):  # type: ignore[misc]
    def __init__(self, last: Callable[..., Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 24))
        self.last = last

    def forward(self, x: Any) -> Any:
        return self.last(x, self.weight)


def _f(function: Callable[..., Any], *shapes: tuple[int, ...]) -> tuple[Any, ...]:
    return lambda: _Function(function), *shapes


_IMAGE, _LINE, _TOKENS, _ROW = (8, 14, 14), (8, 20), (10, 16), (16,)
_ACTIVATIONS = ("CELU", "ELU", "GELU", "GLU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh",
                "LeakyReLU", "LogSigmoid", "Mish", "PReLU", "ReLU", "ReLU6", "RReLU", "SELU",
                "SiLU", "Sigmoid", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink")

MODULES: dict[str, tuple[Any, ...]] = {
    **{name: (getattr(nn, name), _IMAGE) for name in _ACTIVATIONS},
    "Softmax": (lambda: nn.Softmax(-1), _TOKENS),
    "LogSoftmax": (lambda: nn.LogSoftmax(1), _IMAGE),
    "Softmax2d": (nn.Softmax2d, _IMAGE),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(1), _IMAGE),
    "AdaptiveAvgPool2d to 7": (lambda: nn.AdaptiveAvgPool2d(7), _IMAGE),
    "AdaptiveMaxPool2d": (lambda: nn.AdaptiveMaxPool2d(1), _IMAGE),
    "AvgPool1d": (lambda: nn.AvgPool1d(3, 2), _LINE),
    "AvgPool2d": (lambda: nn.AvgPool2d(3, 2, 1), _IMAGE),
    "AvgPool3d": (lambda: nn.AvgPool3d(2), (3, 4, 8, 8)),
    "LPPool2d": (lambda: nn.LPPool2d(2, 2), _IMAGE),
    "MaxPool1d": (lambda: nn.MaxPool1d(2), _LINE),
    "MaxPool2d": (lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True), _IMAGE),
    "MaxPool3d": (lambda: nn.MaxPool3d(2), (3, 4, 8, 8)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(8), _LINE),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(8), _IMAGE),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(3), (3, 4, 8, 8)),
    "GroupNorm": (lambda: nn.GroupNorm(4, 8), _IMAGE),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(8), _IMAGE),
    "LayerNorm": (lambda: nn.LayerNorm(16), _TOKENS),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(3), _IMAGE),
    "RMSNorm": (lambda: nn.RMSNorm(16), _TOKENS),
    "Conv1d": (lambda: nn.Conv1d(8, 6, 3, padding=1), _LINE),
    "Conv2d": (lambda: nn.Conv2d(8, 6, 3, 2), _IMAGE),
    "Conv2d, padding same": (lambda: nn.Conv2d(8, 6, 4, padding="same"), _IMAGE),
    "Conv2d, reflected": (lambda: nn.Conv2d(8, 6, 3, padding=1, padding_mode="reflect"), _IMAGE),
    "Conv3d": (lambda: nn.Conv3d(3, 4, 3, padding=1), (3, 4, 8, 8)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(8, 6, 3, 2), _LINE),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(8, 6, 3, 2, output_padding=1), _IMAGE),
    "Bilinear": (lambda: nn.Bilinear(16, 16, 5), _ROW, _ROW),
    "Linear": (lambda: nn.Linear(16, 5), _ROW),
    "Linear of tokens": (lambda: nn.Linear(16, 5), _TOKENS),
    "Flatten": (nn.Flatten, _IMAGE),
    "Fold": (lambda: nn.Fold((8, 8), 2, stride=2), (16, 16)),
    "Unfold": (lambda: nn.Unfold(2, stride=2), _IMAGE),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), _IMAGE),
    "PixelUnshuffle": (lambda: nn.PixelUnshuffle(2), _IMAGE),
    "ChannelShuffle": (lambda: nn.ChannelShuffle(2), _IMAGE),
    "ConstantPad2d": (lambda: nn.ConstantPad2d((1, 2, 0, 1), 0.5), _IMAGE),
    "CircularPad2d": (lambda: nn.CircularPad2d(1), _IMAGE),
    "ReflectionPad2d": (lambda: nn.ReflectionPad2d(2), _IMAGE),
    "ReplicationPad2d": (lambda: nn.ReplicationPad2d(2), _IMAGE),
    "Upsample, nearest": (lambda: nn.Upsample(scale_factor=2), _IMAGE),
    "Upsample, bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), _IMAGE),
    "Upsample, bicubic": (lambda: nn.Upsample(scale_factor=2, mode="bicubic"), _IMAGE),
    "Upsample, linear": (lambda: nn.Upsample(scale_factor=2, mode="linear"), _LINE),
    "Upsample, trilinear": (lambda: nn.Upsample(scale_factor=2, mode="trilinear"), (3, 4, 8, 8)),
    "GRU": (lambda: _Recurrent(nn.GRU(16, 8, batch_first=True)), _TOKENS),
    "LSTM": (lambda: _Recurrent(nn.LSTM(16, 8, batch_first=True)), _TOKENS),
    "RNN": (lambda: _Recurrent(nn.RNN(16, 8, batch_first=True)), _TOKENS),
    "MultiheadAttention": (lambda: _Attention(masked=False), _TOKENS),
    "MultiheadAttention, masked": (lambda: _Attention(masked=True), _TOKENS),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), _TOKENS),
    "scaled_dot_product_attention": _f(
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v),
        (4, 10, 8), (4, 10, 8), (4, 10, 8)),
    "scaled_dot_product_attention, causal": _f(
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        (4, 10, 8), (4, 10, 8), (4, 10, 8)),
    "scaled_dot_product_attention, mask of the data": _f(
        lambda q, k, v, m: functional.scaled_dot_product_attention(q, k, v, m > 0),
        (4, 10, 8), (4, 10, 8), (4, 10, 8), (1, 10, 10)),
    "argmax": _f(lambda x: x.argmax(1), _IMAGE),
    "argmin": _f(lambda x: x.argmin(-1, keepdim=True), _IMAGE),
    "bmm": _f(torch.bmm, (10, 16), (16, 12)),
    "cat": _f(lambda x: torch.cat([x, x * 2], 1), _IMAGE),
    "chunk": _f(lambda x: x.chunk(2, 1)[1], _IMAGE),
    "cumsum": _f(lambda x: x.cumsum(1), _TOKENS),
    "einsum with a weight": (lambda: _Embedded(
        lambda x, w: torch.einsum("nld,de->nle", x, w)), _TOKENS),
    "einsum of attention": _f(lambda q, k: torch.einsum("nhid,nhjd->nhij", q, k),
                              (4, 10, 8), (4, 12, 8)),
    "einsum, outer": _f(lambda a, b: torch.einsum("ni,nj->nij", a, b), _ROW, _ROW),
    "expand": _f(lambda x: x[:, :, None].expand(-1, -1, 5), _ROW),
    "flip": _f(lambda x: x.flip(2), _IMAGE),
    "gather by constants": _f(
        lambda x: x[:, torch.tensor([2, 0, 1])], _IMAGE),
    "gather_nd by constants": _f(
        lambda x: x[:, torch.tensor([2, 0, 1]), torch.tensor([1, 3, 5])], _IMAGE),
    "grid_sample": _f(lambda x, g: functional.grid_sample(x, g, align_corners=False),
                      _IMAGE, (5, 5, 2)),
    "interpolate, antialias": _f(
        lambda x: functional.interpolate(x, (7, 7), mode="bilinear", antialias=True), _IMAGE),
    "logsumexp": _f(lambda x: x.logsumexp(1), _IMAGE),
    "masked_fill": _f(lambda x: x.masked_fill(x > 1, 0.5), _IMAGE),
    "max along an axis": _f(lambda x: x.max(1).values, _IMAGE),
    "meshgrid": _f(lambda x: x + torch.stack(torch.meshgrid(
        torch.arange(14.0), torch.arange(14.0), indexing="ij")).sum(0), _IMAGE),
    "norm": _f(lambda x: functional.normalize(x, dim=1), _IMAGE),
    "pow": _f(lambda x: x.abs().pow(1.7), _IMAGE),
    "prod": _f(lambda x: x.prod(1), _ROW),
    "remainder": _f(lambda x: torch.remainder(x, 0.7), _IMAGE),
    "repeat": _f(lambda x: x.repeat(1, 2, 1, 3), _IMAGE),
    "repeat_interleave": _f(lambda x: x.repeat_interleave(2, 1), _IMAGE),
    "roll": _f(lambda x: x.roll((1, -2), (2, 3)), _IMAGE),
    "scatter of a slice": _f(lambda x: torch.slice_scatter(x, x[:, :2] * 2, 1, 3, 5), _IMAGE),
    "sort": _f(lambda x: x.sort(-1).values, _ROW),
    "std": _f(lambda x: x.std(-1), _IMAGE),
    "topk": _f(lambda x: x.topk(3).values, _ROW),
    "topk, indices": _f(lambda x: x.topk(3, 1)[1], _IMAGE),
    "tril": _f(lambda x: x.tril(), _IMAGE),
    "triu": _f(lambda x: x.triu(1), _IMAGE),
    "unbind": _f(lambda x: x.unbind(1)[2], _IMAGE),
    "where": _f(lambda x, y: torch.where(x > y, x, y), _IMAGE, _IMAGE),
}
"""For each name how the module is made, and the shapes of its inputs without the batch."""
