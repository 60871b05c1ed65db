"""Modules of PyTorch whose weights in the pattern 2:4 are multiplied by cuSPARSELt; needs torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from gossamer.bench.work import AbsentError

_ROWS, _COLUMNS = 32, 64
"""The rows and the columns of a float16 matrix must be multiples of these numbers."""


def semi_structured(module: nn.Module) -> nn.Module:
    """Turns the weights of 1x1 convolutions and fully connected layers into torch's semi-structured
    tensors, for each layer in which two of every four weights are zero. Returns the module.

    Raises AbsentError where the module has no weights in this pattern, and torch's own error where
    torch has no semi-structured tensors on the weights' device.
    """
    layers = list(_layers(module)) if isinstance(module, fx.GraphModule) else []
    if not layers:
        raise AbsentError("no 1x1 convolution or fully connected layer has weights in the pattern "
                          f"2:4 with multiples of {_ROWS} rows and {_COLUMNS} columns")
    assert isinstance(module, fx.GraphModule)
    for node, matrix in layers:
        source = node.args[1]
        assert isinstance(source, fx.Node)
        name = f"{source.target}_2_4"
        # by default torch multiplies these tensors by cuSPARSELt
        sparse = torch.sparse.to_sparse_semi_structured(matrix.contiguous())
        module.register_parameter(name, nn.Parameter(sparse, requires_grad=False))
        with module.graph.inserting_before(node):
            weight = module.graph.get_attr(name)
        x, _, bias, *options = node.args
        if node.target is functional.conv2d:
            node.target = _pointwise
            node.args = (x, weight, bias, options[0])
        else:
            node.args = (x, weight, bias)
    module.graph.eliminate_dead_code()
    module.delete_all_unused_submodules()
    module.recompile()
    return module


def _pointwise(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
               strides: tuple[int, int]) -> torch.Tensor:
    """Returns a 1x1 convolution of images in channels_last, computed as a matrix product whose rows
    are the pixels."""
    pixels = x[:, :, ::strides[0], ::strides[1]].permute(0, 2, 3, 1)
    return functional.linear(pixels, weight, bias).permute(0, 3, 1, 2)


def _layers(module: fx.GraphModule) -> Any:
    """Yields the call of each layer that can be changed, with its weights as a matrix."""
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target not in (functional.conv2d, functional.linear):
            continue
        source = node.args[1]
        if not isinstance(source, fx.Node) or source.op != "get_attr":
            continue
        weight = getattr(module, str(source.target))
        if node.target is functional.conv2d:
            _, pads, _, groups = node.args[3:]
            if weight.shape[2:] != (1, 1) or groups != 1 or any(pads):
                continue
        matrix = weight.flatten(1)
        rows, columns = matrix.shape
        if rows % _ROWS or columns % _COLUMNS:
            continue
        if bool(((matrix.reshape(rows, -1, 4) != 0).sum(2) <= 2).all()):
            yield node, matrix
