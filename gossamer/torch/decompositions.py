"""Operators that torch's ONNX exporter cannot write for all arguments, in terms of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

_aten = torch.ops.aten


def decomposed(program: Any) -> Any:
    """Returns a program of torch.export without the operators that the exporter may not write. It
    is the program itself where it has none of them, or reads results that are not computed here."""
    found = [node for node in program.graph.nodes if node.target in _TABLE]
    if not found or any(_reads_places(node) for node in found):
        return program
    return program.run_decompositions(_TABLE)


def _reads_places(node: Any) -> bool:
    """Whether a program reads the places of the maxima, the second result of a pooling."""
    return node.target in _MAXIMA and any(
        reader.args[1] == 1 and reader.users for reader in node.users)


def _adaptive_max_pool(x: torch.Tensor, output_size: Sequence[int]
                       ) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the maxima over windows that cover the last axes, as many along each as output_size
    says, as torch.nn.AdaptiveMaxPool2d does; and zeros in place of the places of the maxima."""
    y = _over_windows(torch.amax, x, output_size)
    return y, torch.zeros_like(y, dtype=torch.int64)


def _adaptive_avg_pool(x: torch.Tensor, output_size: Sequence[int]) -> torch.Tensor:
    """Returns the means over windows that cover the last axes, as torch.nn.AdaptiveAvgPool3d
    does."""
    return _over_windows(torch.mean, x, output_size)


def _over_windows(reduced: Callable[[torch.Tensor, int], torch.Tensor], x: torch.Tensor,
                  output_size: Sequence[int]) -> torch.Tensor:
    """Returns a tensor whose last axes are reduced, one after the other. Window i of an axis begins
    at the largest integer that is not above i * size / count, and ends at the smallest one that is
    not below (i + 1) * size / count."""
    for axis, count in enumerate(output_size, x.dim() - len(output_size)):
        size = x.shape[axis]
        if size % count == 0:
            x = reduced(x.unflatten(axis, (count, size // count)), axis + 1)
        else:
            windows = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
            x = torch.stack([reduced(x.narrow(axis, start, end - start), axis)
                             for start, end in windows], axis)
    return x


_MAXIMA = (_aten.adaptive_max_pool1d.default, _aten.adaptive_max_pool2d.default,
           _aten.adaptive_max_pool3d.default)
_TABLE = {**dict.fromkeys(_MAXIMA, _adaptive_max_pool),
          _aten.adaptive_avg_pool3d.default: _adaptive_avg_pool}
"""The table has, for each operator of torch, the function that computes it."""
