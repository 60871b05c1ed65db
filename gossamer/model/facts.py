"""derive: derives the facts of all values of a static graph."""

from __future__ import annotations

from gossamer.facts import REAL, ValueFacts, of_array
from gossamer.model.graph import StaticGraph
from gossamer.model.opset.elementwise import dtype_facts
from gossamer.model.opset.registry import OPSET


def derive(static: StaticGraph) -> dict[str, ValueFacts]:
    """Returns the facts of every input, constant and value of a graph by its name. The facts rules
    of the ops derive these facts. gossamer.facts says for which algorithms facts hold."""
    facts = {info.name: dtype_facts(info.dtype) for info in static.graph.inputs}
    facts.update({name: of_array(array) for name, array in static.constants.items()})
    for node in static.nodes:
        rule = OPSET[node.op].facts
        known = [facts.get(name, REAL) for name in node.inputs]
        facts.update(zip(node.outputs, rule(static, node, known), strict=True))
    return facts
