"""The ways in which files write binary networks down, all of which give layers of signs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper

import gossamer
from gossamer.errors import ModelError, UnsupportedError
from gossamer.facts import PLUS_MINUS_ONE
from gossamer.model.facts import derive
from gossamer.model.infer.resolve import resolve
from gossamer.model.load import load
from gossamer.model.passes.optimise import optimise
from tests.model import onnx_models
from tests.model.onnx_models import runtime, save

QONNX = "qonnx.custom_op.general"
NUMBERS = {"zero": 0.0, "one": 1.0, "minus": -1.0, "two": 2.0, "half": 0.5, "part": 0.3}


def nodes_of(x: str, y: str) -> dict[str, list[NodeProto]]:
    """Returns the nodes that make 1 and -1 of x, in each form."""
    def node(op: str, inputs: list[str], output: str, **options: object) -> NodeProto:
        return helper.make_node(op, inputs, [output], **options)

    truth, number, other = (f"{y}.{name}" for name in ("truth", "number", "other"))
    compared = [node("Greater", [x, "zero"], truth),
                node("Cast", [truth], number, to=TensorProto.FLOAT)]
    def where(output: str) -> list[NodeProto]:
        return [node("GreaterOrEqual", [x, "zero"], f"{output}.truth"),
                node("Where", [f"{output}.truth", "one", "minus"], output)]

    return {
        "where": where(y),
        "where less": [node("Less", [x, "zero"], truth), node("Where", [truth, "minus", "one"], y)],
        "times two minus one": [*compared, node("Mul", [number, "two"], other),
                                node("Sub", [other, "one"], y)],
        "minus half times two": [*compared, node("Sub", [number, "half"], other),
                                 node("Mul", [other, "two"], y)],
        "sign of sign": [node("Sign", [x], truth), node("Add", [truth, "part"], number),
                         node("Sign", [number], y)],
        "sign, and 1 for 0": [node("Equal", [x, "zero"], truth), node("Sign", [x], number),
                              node("Where", [truth, "one", number], y)],
        "straight through": [*where(other), node("Clip", [x, "minus", "one"], truth),
                             node("Sub", [other, truth], number), node("Add", [number, truth], y)],
        "a scale": [*where(other), node("Mul", [other, "part"], y)],
        "BipolarQuant": [node("BipolarQuant", [x, "one"], y, domain=QONNX)],
    }


FORMS = nodes_of("x", "y")


def model(form: str, *, quantised_weights: bool = False) -> ModelProto:
    """Returns a convolution of reals, then a binary one, a pool and a binary product."""
    rng = np.random.default_rng(0)
    arrays = {**{name: np.float32(number) for name, number in NUMBERS.items()},
              "first": rng.standard_normal((8, 3, 3, 3)), "bias": rng.standard_normal(6),
              "second": rng.choice([-1, 1], (6, 8, 3, 3)) * rng.choice([0.25, 0.5], (6, 1, 1, 1)),
              "third": rng.choice([-1, 1], (24, 5)) * rng.choice([0.5, 2], 5)}
    nodes = [helper.make_node("Conv", ["x", "first"], ["a"]), *nodes_of("a", "b")[form]]
    second = "second"
    if quantised_weights:
        arrays["second"] = rng.standard_normal((6, 8, 3, 3))
        nodes.append(helper.make_node("BipolarQuant", ["second", "half"], ["bits"], domain=QONNX))
        second = "bits"
    nodes += [helper.make_node("Conv", ["b", second, "bias"], ["c"]), *nodes_of("c", "d")[form],
              helper.make_node("MaxPool", ["d"], ["e"], kernel_shape=[2, 2], strides=[2, 2]),
              helper.make_node("Flatten", ["e"], ["f"]),
              helper.make_node("MatMul", ["f", "third"], ["y"])]
    proto = onnx_models.model(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 5]}, {
        name: np.asarray(array, np.float32) for name, array in arrays.items()})
    proto.opset_import.append(helper.make_opsetid(QONNX, 1))
    return proto


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("quantised_weights", [False, True])
def test_every_form_gives_layers_of_signs(form: str, quantised_weights: bool,
                                          tmp_path: Path) -> None:
    path = str(save(model(form, quantised_weights=quantised_weights), tmp_path))
    static = resolve(optimise(load(path)), 2)
    assert [node.op for node in static.nodes] == ["conv2d", "conv2d", "pool", "reshape", "gemm"]
    facts = derive(static)
    assert [facts[node.outputs[0]] for node in static.nodes[:4]] == [PLUS_MINUS_ONE] * 4
    bits = gossamer.compile(path, "host", only="host_direct_popcount")
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)
    y = bits(x)
    assert [row["algorithm"] for row in bits.report(2).rows].count("host_direct_popcount") == 2
    # ONNX Runtime has no BipolarQuant, which is "where"
    (expected,) = ([gossamer.compile(path, "host", only="host_im2col")(x)] if quantised_weights
                   else runtime(model("where" if form == "BipolarQuant" else form), {"x": x}))
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_bipolar_quant_without_its_scale_or_of_another_domain(tmp_path: Path) -> None:
    for domain, inputs, error, words in (
            (QONNX, ["a"], ModelError, "BipolarQuant 'b': has 1 inputs, expected 2"),
            ("my.ops", ["a", "one"], UnsupportedError, "BipolarQuant 'b' of domain 'my.ops'")):
        changed = model("BipolarQuant")
        del changed.graph.node[1].input[:]
        changed.graph.node[1].input.extend(inputs)
        changed.graph.node[1].domain = domain
        with pytest.raises(error, match=words):
            load(str(save(changed, tmp_path)))
