"""Splits a graph between gossamer and torch."""

from __future__ import annotations

import operator
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

from gossamer.errors import UnsupportedError, first_line
from gossamer.torch.dynamo_graph import bake_all, target_name
from gossamer.torch.exported import line_of

Optimize = Callable[[fx.GraphModule, tuple[Any, ...]], Any]
"""Function of a graph and its arguments that returns an optimised module, or raises a
GossamerError."""
_SIZES = {"size", "sym_size", "getattr", "numel", "dim"}
"""Names of operators that read the size of a tensor, which costs no time."""


@dataclass(frozen=True)
class Left:
    """An operator that is left to torch.

    operator: name of the operator.
    line: the line of the user's code; "" if unknown.
    reason: why gossamer does not compute the operator.
    share: the operator's fraction of torch's time for the graph.
    """

    operator: str
    line: str
    reason: str
    share: float

    def __str__(self) -> str:
        return f"{self.operator}{self.line}: {self.share:.0%} of the time; {self.reason}"


@dataclass
class Parts:
    """A graph with parts that gossamer computes.

    module: the graph, in which each part is one module.
    taken: number of operators that gossamer computes.
    left: the operators that torch computes.
    optimized: the modules of the parts.
    """

    module: fx.GraphModule
    taken: int = 0
    left: list[Left] = field(default_factory=list)
    optimized: list[Any] = field(default_factory=list)


def operators_of(module: fx.GraphModule) -> int:
    """Return the number of operators of a graph."""
    return sum(map(_is_operator, module.graph.nodes))


def parts_of(module: fx.GraphModule, arguments: tuple[Any, ...], optimize: Optimize,
             try_alone: Optimize, least_operators: int, left: Mapping[str, str]) -> Parts:
    """Replace parts of a graph, as large as possible, by optimised modules.

    The graph is changed in place.

    optimize: function that makes the optimised module of a part.
    try_alone: function that optimises one operator, to find out whether gossamer can compute it.
    least_operators: parts with fewer operators are left to torch, because a call would cost more
    time than it saves.
    left: reasons, by node name, for nodes that torch must compute.
    """
    record = _Record(module)
    for _ in range(2):
        # only the times of the second run count: the first run includes torch's initialisation
        record.run(*arguments)
    support = _Support(record, try_alone, left)
    chosen = []
    reasons = support.reasons
    for nodes in _stages(record, support):
        operators = [node for node in nodes if record.is_operator(node)]
        if len(operators) >= least_operators:
            chosen.append(dict.fromkeys(nodes))
        else:
            reasons.update(dict.fromkeys(
                (node.name for node in operators),
                f"this part of the graph has only {len(operators)} operators, fewer than "
                f"{least_operators}: calling it would cost more time than it saves"))
    operators = list(filter(record.is_operator, module.graph.nodes))
    fused = fuse_by_partitions(module, chosen)
    result = Parts(fused)
    values = _Record(fused)
    values.run(*arguments)
    for node in list(fused.graph.nodes):
        if node.op == "call_module" and str(node.target).startswith("fused_"):
            _optimize_part(result, node, values.values, optimize, reasons)
    fused.recompile()
    of_torch = [node for node in operators if node.name in reasons]
    total = sum(record.seconds.values()) or 1.0
    result.left = [Left(target_name(node), line_of(node.meta.get("stack_trace") or ""),
                        reasons[node.name], record.seconds[node.name] / total)
                   for node in of_torch]
    result.taken = len(operators) - len(of_torch)
    return result


def _stages(record: _Record, support: _Support) -> list[list[fx.Node]]:
    """Return lists of nodes that gossamer may compute as parts.

    Each part can be computed in one call: the operators of torch on which the part depends run
    before it, and the operators of torch that depend on the part run after it.
    """
    stages: dict[fx.Node, int] = {}  # even stages are gossamer's, odd ones are torch's
    constants: set[fx.Node] = set()
    for node in record.module.graph.nodes:
        if node.op in ("call_function", "call_method", "call_module"):
            stage = max((stages[each] for each in node.all_input_nodes if each in stages),
                        default=0)
            stages[node] = stage + (stage % 2 == support.is_taken(node))
            if stages[node] == 0 and constants.issuperset(
                    each for each in node.all_input_nodes if each.op != "get_attr"):
                constants.add(node)
    for node in reversed(stages):
        if node in constants:  # constants are computed in the first stage that reads them
            stages[node] = min((stages[each] for each in node.users if each in stages), default=0)
    parts = defaultdict(list)
    for node, stage in stages.items():
        parts[stage].append(node)
    return [nodes for stage, nodes in sorted(parts.items()) if stage % 2 == 0]


def _optimize_part(result: Parts, node: fx.Node, values: Mapping[str, Any],
                   optimize: Optimize, reasons: dict[str, str]) -> None:
    part = result.module.get_submodule(str(node.target))
    inner = [each.name for each in part.graph.nodes]
    weights = {index: values[argument.name] for index, argument in enumerate(node.args)
               if argument.op == "get_attr"}
    arguments = tuple(argument for argument in node.args if argument.op != "get_attr")
    try:
        bake_all(part, weights)
        fast = optimize(part, tuple(values[argument.name] for argument in arguments))
    except Exception as error:
        # torch computes the part, whose weights bake_all() has already turned into attributes
        reasons.update(dict.fromkeys(inner, _reason(error)))
    else:
        result.module.add_submodule(str(node.target), fast)
        result.optimized.append(fast)
    node.args = arguments


class _Record(fx.Interpreter):
    """Runs a graph with torch, and records the values and the run times of its nodes."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.values: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}

    def run(self, *arguments: Any, **options: Any) -> Any:
        with torch.no_grad():
            return super().run(*arguments, **options)

    def run_node(self, n: fx.Node) -> Any:
        start = time.perf_counter()
        result = super().run_node(n)
        if isinstance(result, torch.Tensor) and result.is_cuda:
            torch.cuda.synchronize(result.device)
        self.seconds[n.name] = time.perf_counter() - start
        self.values[n.name] = result
        return result

    def is_operator(self, node: fx.Node) -> bool:
        """Return whether a node computes a value.

        Nodes that only read a size, select one of several results, or return their argument do not
        count as computing a value.
        """
        source = self.values[node.args[0].name] if node.args and isinstance(
            node.args[0], fx.Node) else None
        return self.values[node.name] is not source and (_is_operator(node) or (
            node.target is operator.getitem and isinstance(source, torch.Tensor)))


class _Support:
    """Finds out whether gossamer can compute a node.

    The node is optimised alone. Only one of several nodes with equal operators and operand shapes
    is tried.

    reasons: why a node is left to torch, by the node's name.
    """

    def __init__(self, record: _Record, optimize: Optimize, left: Mapping[str, str]) -> None:
        self._record = record
        self._optimize = optimize
        self._known: dict[Hashable, str] = {}
        self.reasons = dict(left)

    def is_taken(self, node: fx.Node) -> bool:
        """Return whether gossamer may compute a node."""
        if node.name in self.reasons:
            return False
        if not self._record.is_operator(node):
            source = node.args[0]
            return isinstance(source, fx.Node) and (
                source.op == "placeholder" or source.name not in self.reasons)
        key = (node.op, str(node.target), str(fx.map_arg(
            (node.args, node.kwargs), lambda each: _text(self._record.values[each.name]))))
        if key not in self._known:
            self._known[key] = self._tried(node)
        if self._known[key]:
            self.reasons[node.name] = self._known[key]
        return not self._known[key]

    def _tried(self, node: fx.Node) -> str:
        """Return why gossamer cannot compute a node; "" if it can."""
        graph = fx.Graph()
        arguments: list[Any] = []
        weights: dict[int, Any] = {}

        def given(each: fx.Node) -> Any:
            value = self._record.values[each.name]
            if not isinstance(value, torch.Tensor):
                return value
            if each.op == "get_attr":
                weights[len(weights) + len(arguments)] = value
            else:
                arguments.append(value)
            return graph.placeholder(f"x{len(weights) + len(arguments)}")

        args, kwargs = fx.map_arg((node.args, node.kwargs), given)
        result = graph.create_node(node.op, node.target, args, kwargs)
        if not arguments:  # the node computes a constant, but a module needs an input
            arguments.append(torch.zeros(2))
            result = (result, graph.call_method("neg", (graph.placeholder("x"),)))
        graph.output(result)
        module = fx.GraphModule(self._record.module, graph)
        try:
            bake_all(module, weights)
            self._optimize(module, tuple(arguments))
        except Exception as error:
            return _reason(error)
        return ""


def _reason(error: Exception) -> str:
    """Return an error's reason, without the advice on options."""
    text = str(error).partition(", and strict allows")[0]
    return first_line(UnsupportedError(text.rpartition("computes 1 node: ")[2]))


def _text(value: Any) -> Any:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def _is_operator(node: fx.Node) -> bool:
    """Return whether a node computes a value.

    Nodes that only read a size or select one of several results do not count as computing a value.
    """
    return (node.op in ("call_function", "call_method", "call_module")
            and node.target is not operator.getitem and target_name(node) not in _SIZES)
