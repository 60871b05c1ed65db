"""The evaluation of an op with NumPy against the reference of what a node of it is lowered to."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.model.opset.definition import not_evaluated
from gossamer.model.opset.registry import OPSET
from tests.model.executor import execute
from tests.model.opset.cases import CASES, node_of
from tests.tolerances import FLOAT32, normalised_error

EVALUATED = [name for name, op in OPSET.items() if op.remains and op.evaluate is not not_evaluated]


@pytest.mark.parametrize("op", EVALUATED)
def test_evaluation_agrees_with_the_reference(op: str) -> None:
    for case in CASES[op]:
        node, static, arrays = node_of(op, case)
        results = OPSET[op].evaluate(node.attributes, [arrays[name] for name in node.inputs])
        expected = execute(static, arrays)
        for name, result in zip(node.outputs, results, strict=True):
            assert result.shape == static.shapes[name]
            assert result.dtype.name == static.dtypes[name]
            if result.dtype.kind == "f":
                assert normalised_error(result, expected[name]) <= FLOAT32
            else:
                np.testing.assert_array_equal(result, expected[name])


def test_every_op_of_a_static_graph_has_a_case() -> None:
    assert CASES.keys() == {name for name, op in OPSET.items() if op.remains}
