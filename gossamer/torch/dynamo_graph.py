"""Converts graphs of torch.compile to modules with weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from gossamer.errors import UnsupportedError, quoted


@dataclass
class TensorGraph:
    """A graph of Dynamo as a module with weights.

    module: the module, a function of the graph's inputs.
    weights: attribute names of the weights, by the indices of the arguments that are weights.
    numbers: the values of 0-D tensors that only item() reads, by the arguments' indices. The values
    are constants of the module.
    inputs: the indices of the arguments that are inputs of the module.

    All other arguments are sizes, which the module reads from the shapes of its inputs.
    """

    module: fx.GraphModule
    weights: dict[int, str]
    numbers: dict[int, float]
    inputs: list[int]


def target_name(node: fx.Node) -> str:
    """Return the name of the function or method that a node calls."""
    return str(getattr(node.target, "__name__", node.target)).split(".")[0]


def tensor_graph(graph_module: fx.GraphModule, arguments: Sequence[Any]) -> TensorGraph:
    """Convert a graph of Dynamo to a function of its inputs.

    Dynamo passes weights as arguments. The weights become attributes of the
    module, because only weights that are known in advance can be packed. An argument that is a size
    is replaced by the size of a tensor. Raises UnsupportedError if no tensor has this size.
    """
    module = copy.copy(graph_module)
    module.graph = copy.deepcopy(graph_module.graph)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    result = TensorGraph(module, {}, {}, [])
    sizes: list[tuple[int, fx.Node]] = []
    for index, (node, value) in enumerate(zip(placeholders, arguments, strict=True)):
        if not isinstance(value, torch.Tensor):
            sizes.append((index, node))
        elif _is_weight(node, value):
            result.weights[index] = node.name
            bake(module, node, value)
        elif readers := _item_calls(node, value):
            result.numbers[index] = value.item()
            for reader in readers:
                reader.replace_all_uses_with(value.item())
                module.graph.erase_node(reader)
            module.graph.erase_node(node)
        else:
            result.inputs.append(index)
    tensors = [placeholders[index] for index in result.inputs]
    for index, node in sizes:
        _take_size_from(module, node, arguments[index], tensors)
    module.recompile()
    return result


def bake(module: fx.GraphModule, node: fx.Node, value: Any) -> None:
    """Replace a graph's argument by a weight of the same name."""
    set_weight(module, node.name, value)
    with module.graph.inserting_before(node):
        attribute = module.graph.get_attr(node.name)
    attribute.meta = dict(node.meta)
    node.replace_all_uses_with(attribute)
    module.graph.erase_node(node)


def set_weight(module: fx.GraphModule, name: str, value: Any) -> None:
    """Set a module's parameter or buffer by name."""
    module._parameters.pop(name, None)
    module._buffers.pop(name, None)
    if isinstance(value, torch.nn.Parameter):
        module.register_parameter(name, value)
    else:
        module.register_buffer(name, value)


def bake_all(module: fx.GraphModule, values: Mapping[int, Any]) -> None:
    """Replace arguments of a graph by attributes of its module.

    values: the values of these arguments, by the arguments' indices.
    """
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for index, value in values.items():
        bake(module, placeholders[index], value)
    module.recompile()


def _is_weight(node: fx.Node, value: Any) -> bool:
    static = (node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type")
    return static is not None or isinstance(value, torch.nn.Parameter)


def _item_calls(node: fx.Node, value: Any) -> list[fx.Node]:
    """Return the item() calls that read a 0-D tensor.

    Returns an empty list if the tensor has dimensions or other readers.
    """
    readers = list(node.users)
    are_items = all(reader.op == "call_method" and reader.target == "item" for reader in readers)
    return readers if value.dim() == 0 and are_items else []


def _take_size_from(module: fx.GraphModule, node: fx.Node, value: Any,
                    tensors: Sequence[fx.Node]) -> None:
    """Replace an argument that is a size by a node that reads the size from a tensor."""
    if node.users:
        symbol = str(node.meta.get("example_value", value))
        source = next(((tensor, axis) for tensor in tensors for axis, size in enumerate(
            getattr(tensor.meta.get("example_value"), "shape", ())) if str(size) == symbol), None)
        if source is None:
            raise UnsupportedError(f"the argument {quoted(node.name)} is a symbolic integer that "
                                   "is not the size of any tensor")
        following = source[0].next
        while following.op == "placeholder":
            following = following.next
        with module.graph.inserting_before(following):
            size = module.graph.call_function(torch.ops.aten.sym_size.int, source)
        node.replace_all_uses_with(size)
    module.graph.erase_node(node)
