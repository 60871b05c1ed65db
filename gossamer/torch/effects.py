"""Finds the side effects of a graph of torch.compile.

The side effects are writes in place, results that are views of other tensors, random numbers and
changes of modes. A graph or an operator with such effects is left to torch.
"""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gossamer.errors import UnsupportedError, first_line, quoted
from gossamer.torch.dynamo_graph import target_name
from gossamer.torch.exported import line_of

_NAMESPACES = {"aten", "prim", "prims", "quantized", "quantized_decomposed", "torchao",
               "torchvision", "transformers"}
"""Namespaces of stateless operators."""
_MODULES = ("torch", "_operator", "operator", "math", "builtins", "torchvision")
"""Packages of stateless functions."""
_MODES = ("_enter", "_exit", "_set_grad_enabled", "_increment_nesting", "_decrement_nesting")
"""Parts of the names of functions that change the mode of later operators."""
_TRAINED = {"native_batch_norm": 5, "cudnn_batch_norm": 5, "miopen_batch_norm": 5}
"""Operators that write statistics in training, although their schemas do not declare these writes.
Each operator has the index of its argument that is true in training."""
_MEMBER = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]")
_LOCAL = re.compile(r"^L\['([^']*)'\]")


@dataclass
class Effects:
    """The side effects of a graph.

    random: names of the nodes that draw random numbers.
    writes: for each node that writes a value of the graph in place, the names of all nodes whose
    results share memory with this value; an empty list if the node writes several values.
    views: for each node with a result that must share memory with an input or another output, the
    reason why torch computes the node.
    """

    random: set[str] = field(default_factory=set)
    writes: dict[str, list[str]] = field(default_factory=dict)
    views: dict[str, str] = field(default_factory=dict)


def effects_of(module: fx.GraphModule, arguments: Sequence[Any]) -> Effects:
    """Return the side effects of a graph.

    The graph is run on fake tensors to find them. Raises UnsupportedError if torch must compute the
    whole graph, because it writes an input or a buffer, changes a mode of torch, calls a function
    that may have a state, or cannot run on fake tensors.
    """
    for node in module.graph.nodes:
        if reason := _foreign_reason(module, node):
            raise UnsupportedError(f"{reason}{_line(node)}")
    for device in {value.device.type for value in arguments if isinstance(value, torch.Tensor)}:
        if torch.is_autocast_enabled(device):
            raise UnsupportedError("autocast is on, and only torch knows the resulting dtypes")
    run = _Run(module)
    mode = FakeTensorMode(allow_non_fake_inputs=True, static_shapes=True, shape_env=ShapeEnv())
    try:
        with torch.no_grad(), mode:
            run.run(*[mode.from_tensor(value, static_shapes=True)
                      if isinstance(value, torch.Tensor) else value for value in arguments])
    except Exception as error:
        raise UnsupportedError("its writes are not known before it runs: "
                               f"{first_line(error)}") from error
    if run.refused:
        raise UnsupportedError(run.refused)
    writes = {name: [node.name for node in run.memory[memory]
                     if isinstance(run.env[node], torch.Tensor)] if memory else []
              for name, memory in run.writes.items()}
    return Effects(run.random, writes, _views(module, run.memory))


def without_writes(module: fx.GraphModule, effects: Effects) -> fx.GraphModule:
    """Return a copy of a graph without writes in place.

    Each operator that writes a value returns a changed copy instead, and later readers of the value
    read the copy. Raises UnsupportedError if a view of a value is written, or if a view is read
    after the value is written.
    """
    result = fx.GraphModule(module, copy.deepcopy(module.graph))
    nodes = {node.name: node for node in result.graph.nodes}
    positions = {name: position for position, name in enumerate(nodes)}
    for name, same_memory in effects.writes.items():
        node, position = nodes[name], positions[name]
        views = [nodes[each] for each in same_memory[1:] if each not in effects.writes]
        whole = [nodes[each] for each in same_memory if nodes[each] not in views]
        source = node.args[0] if node.args else None
        if (source not in whole or "call_module" in (node.op, whole[0].op)
                or any(_is_stale(view, position, same_memory, positions) for view in views)
                or not effects.views.keys().isdisjoint(same_memory)):
            raise UnsupportedError(f"{target_name(node)} writes a tensor in place that other "
                                   f"operators may read{_line(node)}")
        node.op, node.target = "call_function", _returning(node.op, node.target)
        for each in whole:
            each.replace_all_uses_with(
                node, lambda user, position=position: positions[user.name] > position)
    result.recompile()
    return result


def _is_stale(view: fx.Node, position: int, same_memory: Sequence[str],
              positions: dict[str, int]) -> bool:
    """Return whether a view would miss a write to a copy.

    without_writes() lets an operator write a copy instead of the value itself. A view misses this
    write if it is made before the write and read after it, or if it is made from a value in other
    memory.

    position: the position of the node that writes.
    """
    last = max((positions[user.name] for user in view.users), default=0)
    return positions[view.name] < position < last or not any(
        each.name in same_memory for each in view.all_input_nodes)


@cache
def _returning(op: str, target: Any) -> Callable[..., Any]:
    """Return a function that applies an in-place operator to a copy.

    The function copies its first argument, lets the operator write the copy, and returns it.
    """
    def changed(source: Any, *args: Any, **kwargs: Any) -> Any:
        result = source.clone()
        function = getattr(torch.Tensor, target) if op == "call_method" else target
        function(result, *args, **kwargs)
        return result

    changed.__name__ = str(getattr(target, "__name__", target))
    return changed


@contextmanager
def random_numbers_restored(arguments: Sequence[Any], *, after_errors_only: bool = False
                            ) -> Iterator[None]:
    """Restore the state of torch's random generators on exit.

    The generators are those of the CPU and of the GPUs that hold tensors of `arguments`.

    after_errors_only: whether the state is restored only after an error.
    """
    devices = {value.device for value in arguments
               if isinstance(value, torch.Tensor) and value.is_cuda}
    state, states = torch.get_rng_state(), {
        device: torch.cuda.get_rng_state(device) for device in devices}
    restored = True
    try:
        yield
        restored = not after_errors_only
    finally:
        if restored:
            torch.set_rng_state(state)
            for device, each in states.items():
                torch.cuda.set_rng_state(each, device)


class _Run(fx.Interpreter):
    """An execution of a graph on fake tensors.

    refused: why torch must compute the whole graph; "" if gossamer may compute parts of it.
    random: names of the nodes that draw random numbers.
    writes: by the name of each node that writes a value of the graph, the number of this value's
    storage; 0 if the node writes several values.
    memory: for each storage, by its number, the nodes with values in it.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.refused = ""
        self.random: set[str] = set()
        self.writes: dict[str, int] = {}
        self.memory: dict[int, list[fx.Node]] = defaultdict(list)
        self._node: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        self._node = n
        with _Observer(self):
            value = super().run_node(n)
        if n.op != "output":
            for memory in {_memory(leaf) for leaf in tree_leaves(value) if _is_plain(leaf)}:
                self.memory[memory].append(n)
        return value

    def fetch_attr(self, target: str) -> Any:
        value = super().fetch_attr(target)
        mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        return mode.from_tensor(value, static_shapes=True) if isinstance(
            value, torch.Tensor) else value

    def saw(self, func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Record the effects of an operator that the current node calls."""
        node = self._node
        assert node is not None
        if _draws(func, args, kwargs):
            self.random.add(node.name)
        if kwargs.get("generator") is not None:
            self.refused = self.refused or (
                f"{target_name(node)} has its own generator{_line(node)}")
        written = [value for index, argument in enumerate(func._schema.arguments)
                   if argument.alias_info is not None and argument.alias_info.is_write
                   for value in tree_leaves(args[index] if index < len(args)
                                            else kwargs.get(argument.name))]
        training = _TRAINED.get(func._schema.name.rpartition("::")[2])
        if training is not None and args[training]:
            written += [value for value in args[3:5] if value is not None]
        for value in filter(_is_plain, written):
            owners = self.memory.get(_memory(value), [])
            if owners and owners[0].op in ("placeholder", "get_attr"):
                self.refused = self.refused or (
                    f"it writes {quoted(_users_name(owners[0]))} in place{_line(node)}")
            elif owners:
                memory = _memory(value)
                self.writes[node.name] = (
                    memory if self.writes.get(node.name, memory) == memory else 0)


class _Observer(TorchDispatchMode):
    """Tells a run which operators its nodes call."""

    def __init__(self, run: _Run) -> None:
        super().__init__()
        self._run = run

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._run.saw(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _views(module: fx.GraphModule, memory: dict[int, list[fx.Node]]) -> dict[str, str]:
    """Return why torch must compute some nodes, by the nodes' names.

    These are the nodes whose results share memory with inputs or with other outputs.
    """
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    outputs = set(output.all_input_nodes)
    reasons: dict[str, str] = {}
    for nodes in memory.values():
        inputs = [node for node in nodes if node.op in ("placeholder", "get_attr")]
        computed = [node for node in nodes if node not in inputs]
        if inputs and outputs.intersection(computed):
            what = f"the input {quoted(_users_name(inputs[0]))}"
        elif len(outputs.intersection(computed)) > 1:
            what, computed = f"the output {computed[0].name}", computed[1:]
        else:
            continue
        reasons.update(dict.fromkeys((node.name for node in computed),
                                     f"its result shares memory with {what}"))
    return reasons


def _foreign_reason(module: fx.GraphModule, node: fx.Node) -> str:
    """Return why torch must execute a node; "" if gossamer may compute it."""
    target = node.target
    if node.op == "call_module":
        target = type(module.get_submodule(str(target)))
    if isinstance(target, HigherOrderOperator):
        return f"{target_name(node)} is a higher-order operator"
    if isinstance(target, OpOverload | OpOverloadPacket):
        namespace = str(target).partition(".")[0] if isinstance(target, OpOverload) else (
            target._qualified_op_name.partition("::")[0])
        if namespace not in _NAMESPACES:
            return f"the operator {target} may have a state"
    elif node.op in ("call_function", "call_module"):
        name = getattr(target, "__name__", "")
        if any(part in name for part in _MODES):
            return f"{name} changes a mode of torch"
        if _is_user_code(target):
            return _state_reason(name or target)
    if target_name(node) == "as_strided":
        return "as_strided reads memory by its addresses"
    return ""


def _is_user_code(target: Any) -> bool:
    package = str(getattr(target, "__module__", None) or "torch").partition(".")[0]
    return package not in _MODULES


def _state_reason(function: Any) -> str:
    return f"the function {function} may have a state"


def users_state(module: fx.GraphModule) -> str:
    """Return why Dynamo must not reuse the compiled graph; "" if it may.

    The reason is a call of a user's function that Dynamo was told not to trace.
    """
    return next((_state_reason(target_name(node)) for node in module.graph.nodes
                 if node.op == "call_function" and not isinstance(
                     node.target, HigherOrderOperator | OpOverload | OpOverloadPacket)
                 and _is_user_code(node.target)), "")


def _draws(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether an operator draws random numbers.

    Attention operators draw random numbers only if they apply dropout.
    """
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for index, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            return bool(args[index] if index < len(args)
                        else kwargs.get("dropout_p", argument.default_value))
    return True


def _is_plain(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided


def _memory(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _users_name(node: fx.Node) -> str:
    """Return the name of a graph's argument in the user's code."""
    source = getattr(node, "_dynamo_source", None) or node.meta.get("grapharg")
    name = getattr(getattr(source, "source", source), "name", node.name)
    name = _MEMBER.sub(r".\1", str(name() if callable(name) else name))
    return _LOCAL.sub(r"\1", name)


def _line(node: fx.Node) -> str:
    return line_of(node.meta.get("stack_trace") or "")
