"""Epilogues in kernels of their own, and layers of zeros, which compute nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.expression import apply
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.epilogue import operand_arrays
from gossamer.ops.epilogue_pass import epilogue_pass_launches
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.weights import Weights, WeightsInfo
from gossamer.ops.zero_weights import ZeroConvolution, ZeroProduct, ZeroWeights
from gossamer.tensor import Format, TensorSpec, pack, unpack
from tests.ops.fused.blocks import BIAS, BIAS_RELU
from tests.ops.harness import Guarded, check_variants, random_weights
from tests.ops.recording import RecordingDevice

RELU = Epilogue(apply("relu"))
RESIDUAL = Epilogue(apply("add"), ("tensor",))
# (value * tensor + channel) * channel
MIXED = Epilogue(apply("mul").then(apply("add")).then(apply("mul")),
                 ("tensor", "channel", "channel"))
SPECS = [TensorSpec(shape, Format(layout, dtype))
         for dtype in ("float32", "float16") for layout in ("NCHW", "NHWC", "CHWN")
         for shape in ((4, 8, 3, 2), (3, 5, 3, 3), (2, 3, 2, 2))]
MATRICES = [TensorSpec(shape, Format(dtype=dtype))
            for dtype in ("float32", "float16") for shape in ((3, 8), (5, 7), (1, 1))]


@pytest.mark.sanitize
@pytest.mark.parametrize("spec", SPECS + MATRICES, ids=str)
@pytest.mark.parametrize("epilogue", [RELU, BIAS, RESIDUAL, MIXED],
                         ids=["relu", "bias", "residual", "mixed"])
def test_rewrites_the_result(compiled_device: Device, spec: TensorSpec,
                             epilogue: Epilogue) -> None:
    device = compiled_device
    rng = np.random.default_rng(3)
    # 16-bit floats with few digits make every sum and product exact
    result, *tensors = (np.round(rng.normal(size=spec.shape) * 4).astype(spec.dtype) / 4
                        for _ in range(1 + epilogue.tensor_count))
    arrays = {f"operand{i}": np.round(rng.normal(size=spec.shape[1]) * 4).astype(np.float32) / 4
              for i, kind in enumerate(epilogue.operands) if kind == "channel"}
    operands = operand_arrays(epilogue, arrays, tensors, len(spec.shape))
    expected = epilogue.expression.evaluate(result.astype(np.float32), *operands)[0]

    guarded = Guarded(device, spec.nbytes)
    device.write(guarded.buffer, pack(result, spec))
    unused = device.upload(np.zeros(1, np.float32), "a test")
    inputs = [unused, *(device.upload(pack(tensor, spec), "a test") for tensor in tensors)]
    (step,) = epilogue_pass_launches(epilogue, Weights(arrays, device), device, spec, 1)
    step.run(device, inputs, [guarded.buffer], None)
    stored = guarded.contents("the epilogue").view(spec.dtype)
    np.testing.assert_array_equal(unpack(stored, spec), expected.astype(spec.dtype))


def test_nothing_to_do(recorder: RecordingDevice) -> None:
    spec = TensorSpec((2, 4, 3, 3), Format("NCHW"))
    assert not epilogue_pass_launches(Epilogue(), Weights({}, recorder), recorder, spec, 1)
    empty = TensorSpec((0, 4, 3, 3), Format("NCHW"))
    assert not epilogue_pass_launches(RELU, Weights({}, recorder), recorder, empty, 1)
    assert not recorder.sources


@pytest.mark.parametrize(("shape", "layout", "epilogue", "vector"), [
    ((4, 8, 3, 3), "NHWC", BIAS, 4), ((4, 8, 2, 2), "NCHW", BIAS, 4),
    ((4, 8, 3, 3), "CHWN", BIAS, 4), ((4, 8, 3, 3), "NCHW", BIAS, 1),
    ((4, 8, 3, 3), "NCHW", RESIDUAL, 4), ((4, 7, 2, 2), "NHWC", BIAS, 1),
    ((4, 7), "row", RELU, 4), ((3, 7), "row", RELU, 1),
])
def test_takes_four_where_memory_allows(recorder: RecordingDevice, shape: tuple[int, ...],
                                        layout: str, epilogue: Epilogue, vector: int) -> None:
    weights = Weights({"operand0": np.zeros(shape[1], np.float32)}, recorder)
    epilogue_pass_launches(epilogue, weights, recorder, TensorSpec(shape, Format(layout)), 1)
    (source,) = recorder.sources
    assert dict(source.defines)["VECTOR"] == str(vector)


SUM_SCALED = Epilogue(apply("add").then(apply("mul")), ("tensor", "channel"))
EPILOGUES = pytest.mark.parametrize("epilogue", [Epilogue(), BIAS_RELU, SUM_SCALED],
                                    ids=["none", "bias", "residual"])
NONE_LEFT = WeightsInfo(0.0, "nothing")


def check(algorithm: ZeroWeights, problem: Conv2dProblem | GemmProblem, device: Device) -> None:
    constants = random_weights(problem)
    constants["weight"] = np.zeros_like(constants["weight"])
    check_variants(algorithm, replace(problem, weights_info=NONE_LEFT), device, None, constants)


@pytest.mark.sanitize
@EPILOGUES
@pytest.mark.parametrize("shape", [(2, 4, 6, 5, 8), (1, 2, 3, 3, 3), (0, 2, 3, 3, 4)], ids=str)
def test_zero_convolutions(device: Device, epilogue: Epilogue, shape: tuple[int, ...]) -> None:
    n, c, h, w, out_channels = shape
    check(ZeroConvolution(), Conv2dProblem(n, c, h, w, out_channels, (3, 3),
                                           pads=(1, 1, 1, 1), epilogue=epilogue), device)


@pytest.mark.sanitize
@EPILOGUES
@pytest.mark.parametrize("size", [(3, 8, 5), (1, 7, 1)], ids=str)
def test_zero_products(device: Device, epilogue: Epilogue, size: tuple[int, int, int]) -> None:
    check(ZeroProduct(), GemmProblem(*size, epilogue), device)


def test_layers_with_weights_are_refused(device: Device) -> None:
    problem = GemmProblem(1, 2, 3, weights_info=WeightsInfo(1e-3, "one"))
    assert ZeroProduct().supports(problem, device) == "some weights are not zero"
    assert ZeroProduct().supports(replace(problem, weights_info=NONE_LEFT), device) is None
