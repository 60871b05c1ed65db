"""Modules of the stand-in for PyTorch, and graphs of calls as torch.fx has them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tests.bench.stand_ins.torch_tensors import CHANNELS_LAST, Tensor


class Module:
    """A module whose attributes may be tensors and further modules."""

    training = True

    def __call__(self, *inputs: Any) -> Any:
        return self.forward(*inputs)

    def _named(self) -> Iterator[tuple[str, Any]]:
        yield from vars(self).items()

    def named_tensors(self, before: str = "") -> Iterator[tuple[str, Tensor]]:
        for name, value in self._named():
            if isinstance(value, Tensor):
                yield before + name, value
            elif isinstance(value, Module):
                yield from value.named_tensors(f"{before}{name}.")

    def modules(self) -> Iterator[Module]:
        yield self
        for _, value in self._named():
            if isinstance(value, Module):
                yield from value.modules()

    def parameters(self) -> Iterator[Tensor]:
        return (tensor for _, tensor in self.named_parameters())

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, tensor) for name, tensor in self.named_tensors()
                if not name.rsplit(".", 1)[-1].startswith(("running", "num")))

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self.named_tensors())

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        own = self.state_dict()
        if own.keys() != state.keys():
            raise RuntimeError(f"differ: {sorted(own.keys() ^ state.keys())}")
        for name, tensor in state.items():
            own[name].array = tensor.array.reshape(own[name].shape)

    def register_parameter(self, name: str, value: Tensor) -> None:
        setattr(self, name, value)

    def to(self, *places: Any, dtype: Any = None, memory_format: str | None = None) -> Any:
        for _, tensor in self.named_tensors():
            moved = tensor.to(*places, dtype=dtype, memory_format=(
                memory_format if memory_format != CHANNELS_LAST or tensor.ndim == 4 else None))
            tensor.array, tensor.device = moved.array, moved.device
            tensor.memory_format = moved.memory_format
        return self

    def double(self) -> Any:
        return self.to(np.dtype("float64"))

    def eval(self) -> Any:
        for module in self.modules():
            module.training = False
        return self

    def train(self) -> Any:
        for module in self.modules():
            module.training = True
        return self

    def requires_grad_(self, wanted: bool) -> Any:
        assert not wanted
        return self

    def __repr__(self) -> str:
        return type(self).__name__


class Sequential(Module):
    """Modules that are called in turn."""

    def __init__(self, *members: Module) -> None:
        self.members = list(members)

    def _named(self) -> Iterator[tuple[str, Any]]:
        return ((str(index), member) for index, member in enumerate(self.members))

    def __getitem__(self, index: int) -> Module:
        return self.members[index]

    def __setitem__(self, index: int, module: Module) -> None:
        self.members[index] = module

    def __delitem__(self, index: int) -> None:
        del self.members[index]

    def __len__(self) -> int:
        return len(self.members)

    def forward(self, x: Any) -> Any:
        for member in self.members:
            x = member(x)
        return x


class Node:
    """A call in a graph."""

    def __init__(self, op: str, target: Any, args: tuple[Any, ...] = (),
                 kwargs: dict[str, Any] | None = None) -> None:
        self.op, self.target, self.args, self.kwargs = op, target, args, kwargs or {}


class Graph:
    """Calls in the order in which they are executed."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._place: int | None = None

    def _add(self, node: Node) -> Node:
        self.nodes.insert(len(self.nodes) if self._place is None else self._place, node)
        return node

    def placeholder(self, name: str) -> Node:
        return self._add(Node("placeholder", name))

    def get_attr(self, name: str) -> Node:
        return self._add(Node("get_attr", name))

    def call_function(self, function: Callable[..., Any], args: tuple[Any, ...],
                      kwargs: dict[str, Any] | None = None) -> Node:
        return self._add(Node("call_function", function, args, kwargs))

    def output(self, value: Any) -> Node:
        return self._add(Node("output", "output", (value,)))

    @contextmanager
    def inserting_before(self, node: Node) -> Iterator[None]:
        self._place = self.nodes.index(node)
        yield
        self._place = None

    def eliminate_dead_code(self) -> None:
        used = {id(part) for node in self.nodes for part in _parts((node.args, node.kwargs))}
        self.nodes = [node for node in self.nodes
                      if id(node) in used or node.op in ("placeholder", "output")]


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _parts(each)
    else:
        yield value


class GraphModule(Module):
    """A module that executes a graph."""

    def __init__(self, root: Module, graph: Graph) -> None:
        vars(self).update(copy.copy(vars(root)))
        self.graph = graph

    def delete_all_unused_submodules(self) -> None:
        pass

    def recompile(self) -> None:
        pass

    def forward(self, *inputs: Any) -> Any:
        values: dict[int, Any] = {}
        given = iter(inputs)

        def known(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return type(value)(map(known, value))
            return values[id(value)] if isinstance(value, Node) else value

        for node in self.graph.nodes:
            if node.op == "placeholder":
                values[id(node)] = next(given)
            elif node.op == "get_attr":
                values[id(node)] = getattr(self, node.target)
            elif node.op == "output":
                return known(node.args[0])
            else:
                values[id(node)] = node.target(*known(node.args), **{
                    name: known(value) for name, value in node.kwargs.items()})
        raise AssertionError("the graph has no output")
