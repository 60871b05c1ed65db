"""Random networks with all candidates that the host has: none may compute wrong numbers.

A search leaves such candidates out, so that plans stay right and only their speed shows the fault.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from gossamer.device.registry import find
from gossamer.model.load import load
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.tuner import Tuner
from tests.simulated.networks import random_network


def with_scales(model: onnx.ModelProto) -> onnx.ModelProto:
    """Multiplies the network's input by numbers that are computed from its height and width, as
    exporters write the scale of attention. Such numbers are inputs of a part."""
    graph = model.graph
    graph.initializer.extend(numpy_helper.from_array(np.array([number]), str(number))
                             for number in (2, 3, 4))
    nodes = [helper.make_node("Shape", ["x"], ["shape"])]
    scaled = "x"
    for first, end in ("23", "34"):
        nodes += [helper.make_node("Slice", ["shape", first, end], ["size" + first]),
                  helper.make_node("Cast", ["size" + first], ["real" + first],
                                   to=TensorProto.FLOAT),
                  helper.make_node("Sqrt", ["real" + first], ["root" + first]),
                  helper.make_node("Mul", [scaled, "root" + first], ["scaled" + first])]
        scaled = "scaled" + first
    for node in graph.node:
        node.input[:] = [scaled if name == "x" else name for name in node.input]
    following = list(graph.node)
    del graph.node[:]
    graph.node.extend(nodes + following)
    return model


@pytest.mark.library_parts
@pytest.mark.parametrize("seed", range(8))
def test_no_candidate_computes_wrong_numbers(seed: int, tmp_path: Path) -> None:
    host, path = find("host"), tmp_path / "network.onnx"
    path.write_bytes(with_scales(random_network(seed)).SerializeToString())
    tuner = Tuner(host, "quick", cache=TuningCache(host, tmp_path / "tuning"))
    program = Plan(load(str(path)), host, Policy("quick"), tuner=tuner).program(1 + seed % 3)
    measured = [candidate.measured for node in program.measured for candidate in node.candidates]
    assert any(each.failure is None for each in measured)
    assert not [each for each in measured if each.wrong_numbers]
