"""Networks of one module each, by name, as users of PyTorch write them.

    python -m tests.torch.single_modules

compiles each by torch.compile with gossamer's backend, prints what is left to torch, and fails
where this is not what LEFT says; `--draw` prints the table of LEFT, which docs/pytorch.md has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gossamer.torch.backend import backend, reports
from tests.networks.modules import MODULES
from tests.tolerances import normalised_error

LARGEST_ERROR = 1e-5
_NO_GRAPH = "Dynamo leaves it out of its graphs; `optimize` takes it"
_UNKNOWN = "torch's exporter does not know it"
_FAST_PATH = f"one operator in evaluation mode, and {_UNKNOWN}; `optimize` takes it"
_THREE_AXES = "three axes of space"
_NO_LAYER = "gossamer has no layer of it"
_VIEW = "views of the input, which share its memory as in torch"
LEFT = {
    "LSTM": _NO_GRAPH, "GRU": _NO_GRAPH, "RNN": _NO_GRAPH, "lstm both ways, two layers": _NO_GRAPH,
    "gru both ways": _NO_GRAPH, "TransformerEncoderLayer": _FAST_PATH,
    "transformer_encoder": _FAST_PATH, "RReLU": _UNKNOWN, "Conv3d": _THREE_AXES,
    "AvgPool3d": _THREE_AXES, "MaxPool3d": _THREE_AXES, "LocalResponseNorm": _THREE_AXES,
    "Fold": _NO_LAYER, "CircularPad2d": _NO_LAYER, "grid_sample": _NO_LAYER, "prod": _NO_LAYER,
    "Flatten": _VIEW, "chunk": _VIEW, "expand": _VIEW, "unbind": _VIEW,
    "permute and reshape": _VIEW, "split in unequal parts": _VIEW}
"""Why torch.compile leaves networks of the table to torch on the processor."""


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
        return self.attention(x, x, x)


def image(*shape: int) -> Any:
    return torch.randn(2, *(shape or (8, 10, 10)))


def function(compute: Callable[..., Any], *inputs: Any) -> tuple[nn.Module, tuple[Any, ...]]:
    return Function(compute), inputs or (image(),)


def own_table() -> dict[str, tuple[nn.Module, tuple[Any, ...]]]:
    """Returns the networks that are not among those of tests.networks.modules."""
    return {
        "conv2d, padded": (nn.Conv2d(8, 12, 3, padding=1), (image(),)),
        "conv2d with dilation": (nn.Conv2d(8, 12, 3, dilation=2), (image(),)),
        "conv2d in groups": (nn.Conv2d(8, 12, 3, groups=4), (image(),)),
        "conv2d depthwise": (nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), (image(),)),
        "conv2d pointwise": (nn.Conv2d(8, 16, 1), (image(),)),
        "conv2d of one axis": (nn.Conv2d(8, 8, (1, 5), padding=(0, 2)), (image(),)),
        "conv1d in groups": (nn.Conv1d(8, 12, 3, groups=2), (image(8, 20),)),
        "conv_transpose2d in groups": (nn.ConvTranspose2d(8, 4, 2, 2, groups=2), (image(),)),
        "linear without bias": (nn.Linear(32, 10, bias=False), (image(32),)),
        "linear and flatten": (nn.Sequential(nn.Flatten(), nn.Linear(800, 3)), (image(),)),
        "product of matrices": function(lambda x, y: x @ y, image(4, 5), image(5, 6)),
        "addmm": (Function(lambda x, weight, bias: torch.addmm(bias, x, weight),
                           weight=torch.randn(16, 4), bias=torch.randn(4)), (image(16),)),
        "batch_norm1d of rows": (nn.BatchNorm1d(16), (image(16),)),
        "layer_norm of images": (nn.LayerNorm((8, 10, 10)), (image(),)),
        "instance_norm1d": (nn.InstanceNorm1d(8), (image(8, 20),)),
        "gelu tanh": (nn.GELU("tanh"), (image(),)),
        "threshold": (nn.Threshold(0.1, 0.2), (image(),)),
        "log_sigmoid of large numbers": function(lambda x: F.logsigmoid(200 * x)),
        "softmin": (nn.Softmin(dim=1), (image(16),)),
        "softmax of channels": (nn.Softmax(dim=1), (image(),)),
        "log_softmax of the last axis": (nn.LogSoftmax(dim=-1), (image(5, 16),)),
        "max_pool2d of strides": (nn.MaxPool2d(2), (image(),)),
        "avg_pool2d without padding": (nn.AvgPool2d(3, 2, 1, count_include_pad=False), (image(),)),
        "adaptive_avg_pool2d to 5": (nn.AdaptiveAvgPool2d(5), (image(),)),
        "adaptive_avg_pool1d": (nn.AdaptiveAvgPool1d(1), (image(8, 20),)),
        "adaptive_max_pool1d": (nn.AdaptiveMaxPool1d(1), (image(8, 20),)),
        "adaptive_max_pool1d to 3": (nn.AdaptiveMaxPool1d(3), (image(8, 20),)),
        "adaptive_max_pool2d to 4, 5": (nn.AdaptiveMaxPool2d((4, 5)), (image(),)),
        "adaptive_max_pool3d to 4": (nn.AdaptiveMaxPool3d(4), (image(4, 6, 8, 5),)),
        "adaptive_avg_pool3d to 4": (nn.AdaptiveAvgPool3d(4), (image(4, 6, 8, 5),)),
        "weights normalised by batch_norm": (Function(
            lambda x, weight: F.conv2d(x, F.batch_norm(
                weight.reshape(1, 6, -1), None, None, training=True).reshape(weight.shape)),
            weight=torch.randn(6, 8, 3, 3)), (image(),)),
        "upsample bilinear, corners": (
            nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), (image(),)),
        "zero_pad2d": (nn.ZeroPad2d(1), (image(),)),
        "embedding": (nn.Embedding(20, 6), (torch.randint(0, 20, (2, 7)),)),
        "lstm both ways, two layers": (
            FirstResult(nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True)), (image(5, 8),)),
        "gru both ways": (FirstResult(nn.GRU(8, 6, batch_first=True, bidirectional=True)),
                          (image(5, 8),)),
        "attention with weights": (FirstResult(SelfAttention()), (image(5, 16),)),
        "transformer_encoder": (nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2,
            enable_nested_tensor=False), (image(5, 16),)),
        "cosine_similarity": (nn.CosineSimilarity(dim=1), (image(16), image(16))),
        "product of halves": function(lambda x: torch.mul(*x.chunk(2, dim=1))),
        "concatenation of two": function(lambda x, y: torch.cat([x, y], dim=1), image(), image()),
        "mean and maximum": function(lambda x: x.mean((2, 3)) + x.amax((2, 3))),
        "variance": function(lambda x: x.var((2, 3))),
        "clamp": function(lambda x: x.clamp(-0.5, 0.5)),
        "square root of exp": function(lambda x: torch.sqrt(torch.exp(x))),
        "sine and cosine": function(lambda x: torch.sin(x) * torch.cos(x)),
        "stack": function(lambda x, y: torch.stack([x, y], 1), image(16), image(16)),
        "permute and reshape": function(lambda x: x.permute(0, 2, 3, 1).reshape(-1, 100, 8)),
        "split in unequal parts": function(lambda x: x.split([3, 5], 1)[1]),
        "binary convolution": (Function(lambda x, weight: F.conv2d(
            torch.sign(x), torch.sign(weight), padding=1), weight=torch.randn(8, 8, 3, 3)),
            (image(),)),
    }


def table() -> dict[str, tuple[nn.Module, tuple[Any, ...]]]:
    """Returns the networks of both tables, in evaluation mode, with an example of two images
    each."""
    torch.manual_seed(0)
    networks = {name: (make(), tuple(image(*shape) for shape in shapes))
                for name, (make, *shapes) in MODULES.items()}
    networks |= own_table()
    return {name: (module.eval(), inputs) for name, (module, inputs) in networks.items()}


def eager(module: Any, *inputs: Any) -> Any:
    with torch.no_grad():
        return module(*inputs)


def error(result: Any, expected: Any) -> float:
    """Returns the normalised error of a result; of integers whether any differs."""
    if not expected.is_floating_point():
        return 0.0 if torch.equal(result, expected) else float("inf")
    return normalised_error(result.numpy(), expected.numpy())


def page_table() -> list[str]:
    """Returns the lines of the table of what is left to torch, one for each reason."""
    names: dict[str, list[str]] = {}
    for name, reason in LEFT.items():
        names.setdefault(reason, []).append(name)
    return ["| left to torch on the processor | why |", "| --- | --- |",
            *(f"| {'; '.join(names[reason])} | {reason} |" for reason in names)]


def main() -> int:
    """Prints what torch.compile leaves to torch of each network, with no least size of a part."""
    wrong, found = [], []
    networks = table()
    for name, (module, inputs) in networks.items():
        torch._dynamo.reset()
        reports.clear()
        compiled = torch.compile(module, backend=backend, options={"least_operators": 1})
        try:
            if not error(eager(compiled, *inputs), eager(module, *inputs)) <= LARGEST_ERROR:
                wrong.append(name)
        except Exception as failure:
            wrong.append(f"{name} ({type(failure).__name__}: {failure})")
        left = [each for report in reports for each in report.left]
        if not reports or left:
            found.append(name)
            reasons = dict.fromkeys(f"{each.operator}: {each.reason}" for each in left)
            print(f"{name} is left to torch: {'; '.join(reasons) or 'Dynamo makes no graph of it'}",
                  flush=True)
    unexpected = sorted(set(found) ^ set(LEFT))
    print(f"{len(networks)} networks, {len(networks) - len(found)} computed by gossamer, "
          f"{len(wrong)} unequal to eager {wrong}, LEFT is wrong of {unexpected}")
    return 1 if wrong or unexpected else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--draw"]:
        print(*page_table(), sep="\n")
        raise SystemExit(0)
    raise SystemExit(main())
