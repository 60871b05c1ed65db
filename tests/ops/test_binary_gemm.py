from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.registry import find
from gossamer.facts import PLUS_MINUS_ONE, TERNARY, integers
from gossamer.ops.gemm.binary import HostPopcountGemm
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.gemm.reference import reference
from gossamer.ops.weights import Weights, WeightsInfo
from tests.ops.conv2d.binary.signs import EPILOGUES, SCALED
from tests.ops.harness import run_variant

ALGORITHM = HostPopcountGemm()


@given(rows=st.sampled_from([0, 1, 3, 17, 40]), columns=st.sampled_from([1, 10, 65]),
       depth=st.sampled_from([1, 63, 64, 200]), epilogue=st.sampled_from(EPILOGUES),
       known=st.sampled_from([PLUS_MINUS_ONE, TERNARY]), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_every_bit_of_any_product(rows, columns, depth, epilogue, known, seed: int) -> None:
    problem = GemmProblem(rows, columns, depth, epilogue, SCALED,
                          (known, *[integers(-4, 4)] * epilogue.tensor_count))
    device, rng = find("host"), np.random.default_rng(seed)
    assert ALGORITHM.supports(problem, device) is None
    arrays = {name: rng.choice([-1.5, -0.25, 0.0, 1.0, 3.0], shape).astype(np.float32)
              for name, shape in problem.weight_shapes.items()}
    arrays["weight"] = (rng.choice([-1, 1], (columns, depth)) * rng.choice(
        [0.25, 1.0, 2.0], (columns, 1))).astype(np.float32)
    inputs = problem.example_inputs(rng)
    (variant,) = ALGORITHM.variants(problem, device)
    (result,) = run_variant(ALGORITHM, problem, variant, device, Weights(arrays, device), inputs)
    np.testing.assert_array_equal(result, reference(problem, inputs, arrays)[0].astype(np.float32))


def test_the_reason_names_what_is_missing() -> None:
    device = find("host")
    assert "any floats" in ALGORITHM.supports(GemmProblem(1, 2, 3, weights_info=SCALED), device)
    problem = GemmProblem(1, 2, 3, weights_info=WeightsInfo(), facts=(TERNARY,))
    assert "its weights are not" in ALGORITHM.supports(problem, device)
