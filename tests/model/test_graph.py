"""A graph in one line, and what is told of objects of other libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gossamer
from gossamer.errors import InputError
from gossamer.model.graph import Graph, Node, ValueInfo


def graph(nodes: int) -> Graph:
    return Graph("net", [ValueInfo("x", (None, 3)), ValueInfo("z", (2,), "int64")],
                 [ValueInfo("y", (None, 4))],
                 [Node("add", f"n{index}", ["x"], ["y"]) for index in range(nodes)],
                 {"w": np.zeros((40, 50), np.float32)})


@pytest.mark.parametrize(("nodes", "text"), [(1, "1 node,"), (2, "2 nodes,")])
def test_a_graph_is_shown_in_one_line(nodes: int, text: str) -> None:
    assert repr(graph(nodes)) == (
        f"<Graph net: {text} 2 k parameters, x Nx3 float32, z 2 int64 -> y Nx4 float32>")


@pytest.mark.parametrize("use", [gossamer.load, gossamer.compile])
def test_a_module_of_pytorch_is_told_how_to_come_in(use: Any) -> None:
    class Module:
        """Stands for the base class of PyTorch's modules, where PyTorch is not installed."""

    Module.__module__ = "torch.nn.modules.module"

    class Net(Module):
        pass

    with pytest.raises(InputError, match=r"cannot load a Net, a module of PyTorch: "
                                         r"gossamer.optimize\(module.eval\(\), example_input\)"):
        use(Net())
