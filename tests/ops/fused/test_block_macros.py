"""Epilogues, packed weights and sizes of inverted_residual_mma."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gossamer.expression import Expression, ExpressionStep, apply, identity
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.fused.inverted_residual.block import block_of
from gossamer.ops.fused.inverted_residual.packing import block_macros, pack_chunks
from gossamer.ops.fused.inverted_residual.tiling import BlockTile, BlockTiling, has_tile
from gossamer.ops.fused.problem import without_bias
from tests.ops.fused.blocks import BIAS, BIAS_HARD_SWISH, BIAS_RELU, BIAS_RELU6, block
from tests.ops.harness import random_weights
from tests.simulated.device import H200, SM_75

VALUE = np.array([-1.5, 0.25, 7.0], np.float32)
OPERAND = np.array([0.5, -2.0, 1.0], np.float32)


@pytest.mark.parametrize("epilogue", [BIAS, BIAS_RELU6, BIAS_RELU, BIAS_HARD_SWISH])
def test_a_bias_is_split_off(epilogue: Epilogue) -> None:
    bias, rest = without_bias(epilogue)
    assert bias == 0
    np.testing.assert_array_equal(epilogue.expression.evaluate(VALUE, OPERAND)[0],
                                  rest.expression.evaluate(VALUE + OPERAND, OPERAND)[0])


@pytest.mark.parametrize("epilogue", [
    Epilogue(),
    Epilogue(apply("mul").then(apply("relu")), ("channel",)),
    Epilogue(apply("add"), ("tensor",)),
    Epilogue(Expression(2, (ExpressionStep("add", (0, 1)), ExpressionStep("mul", (2, 0)))),
             ("channel",)),
    Epilogue(Expression(1, (ExpressionStep("add", (0, 0)),))),
])
def test_other_epilogues_stay_as_they_are(epilogue: Epilogue) -> None:
    assert without_bias(epilogue) == (None, epilogue)


@pytest.mark.parametrize(("activation", "bounds"), [
    (apply("clip", 0.0, 6.0), ("two_halves_from_0(", "smaller_halves(packed, 0x46004600u)")),
    (apply("clip", -1.0, 6.0), ("two_halves(", "larger_halves(packed, 0xbc00bc00u)",
                                "smaller_halves(packed, 0x46004600u)")),
    (apply("relu"), ("two_halves_from_0(",)),
    (identity(), ("two_halves(",)),
])
def test_bounds_that_float16_holds_are_applied_to_float16(
        activation: Expression, bounds: tuple[str, ...]) -> None:
    epilogue = Epilogue(apply("add").then(activation), ("channel",))
    store = _stores(epilogue, "fp16")
    assert "EPILOGUE" not in store
    calls = re.findall(r"two_halves\w*\(|\w+_halves\(packed, \w+\)", store)
    assert calls == list(bounds)
    assert "EPILOGUE" in _stores(epilogue, "tf32")


def test_other_bounds_are_applied_to_float32() -> None:
    epilogue = Epilogue(apply("add").then(apply("clip", 0.0, 0.1)), ("channel",))
    assert "EPILOGUE" in _stores(epilogue, "fp16")


def _stores(activation: Epilogue, precision: str) -> str:
    """Return the macro that stores results of the expansion."""
    found = block_of(block(1, 8, 16, 8, (6, 6), activation=activation), True)
    assert found is not None
    divided = BlockTiling(found, BlockTile(3, 3, 16, 1, 4), precision)
    macros = block_macros(divided, "float16", bulk=False)
    return str(macros["EXPAND_STORE(target, first, second, channel)"])


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
@pytest.mark.parametrize("expands", [True, False])
def test_a_chunk_has_as_many_words_as_the_kernel_copies(precision: str, expands: bool) -> None:
    problem = block(1, 24, 40, 24, (6, 6), expands=expands)
    found = block_of(problem, expands)
    assert found is not None
    divided = BlockTiling(found, BlockTile(3, 3, 32, 1, 4), precision)
    packed = pack_chunks(divided, random_weights(problem))
    assert packed.shape == (2, 4 * divided.weight_words) and packed.dtype == np.uint32


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
def test_tiles_of_16_pixels_hold_the_windows_with_less_than_a_unit_left_over(
        precision: str) -> None:
    found = block_of(block(1, 32, 192, 32, (28, 28)), True)
    assert found is not None
    at_once = set()
    for rows, columns, chunk, warps in ((3, 3, 32, 4), (7, 7, 64, 8), (4, 14, 16, 4),
                                        (14, 14, 32, 8), (5, 9, 64, 4)):
        divided = BlockTiling(found, BlockTile(rows, columns, chunk, 1, warps), precision)
        windows, unit = (rows + 2) * (columns + 2), 16 * divided.expand_tiles
        assert divided.row_tiles % divided.expand_tiles == 0
        assert windows <= 16 * divided.row_tiles < windows + unit
        at_once.add(divided.expand_tiles)
    assert max(at_once) > 1


@pytest.mark.parametrize(("channels", "h200", "sm_75"), [
    (16, True, True), (128, True, True), (512, True, False), (2048, False, False)])
def test_blocks_whose_weights_are_too_large_do_not_fit(channels: int, h200: bool,
                                                       sm_75: bool) -> None:
    large = block_of(block(1, channels, 2 * channels, channels, (8, 8)), True)
    assert large is not None
    assert has_tile(large, "fp16", H200.limits) == h200
    assert has_tile(large, "fp16", SM_75.limits) == sm_75
