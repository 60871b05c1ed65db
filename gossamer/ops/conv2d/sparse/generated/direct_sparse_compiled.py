"""direct_sparse_compiled: pruned convolution by code generated for its weights.

Source: Z. Wang, "SparseRT: accelerating unstructured sparsity on GPUs for deep learning inference",
PACT 2020. Weights are immediate operands of unrolled code. In this implementation the code is PTX:
code.py generates it, tiling.py divides the work, and configs.py lists the configs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial

import numpy as np

from gossamer.device.base import Device
from gossamer.device.cuda.ptx import PtxProgram
from gossamer.device.source import source_hash
from gossamer.ops.algorithm import Variant
from gossamer.ops.canonical import canonical
from gossamer.ops.conv2d.common import config_of, sizes_of, specs_in
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.generated.code import generate
from gossamer.ops.conv2d.sparse.generated.configs import configs, estimated_us, lines
from gossamer.ops.conv2d.sparse.generated.epilogue import is_short
from gossamer.ops.conv2d.sparse.generated.tiling import GeneratedConfig, GeneratedTiling
from gossamer.ops.epilogue_pass import epilogue_pass_launches
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import KernelAlgorithm, too_large
from gossamer.ops.weights import Weights, WeightsInfo

DENSEST = 0.5
"""Maximum density. By a rule of thumb, the algorithm gains nothing at larger densities."""

MOST_SECONDS = 60.0
"""Maximum CPU seconds to assemble a config."""

_LINES_PER_SECOND = 13_000
"""Instructions that one CPU core assembles per second, as measured on the host of an H200. On a
slower CPU, building may take longer than `MOST_SECONDS`. This does no other harm."""

_MOST_LINES = MOST_SECONDS * _LINES_PER_SECOND


class DirectSparseCompiled(KernelAlgorithm):
    """Kernels that are generated for one layer's weights.

    Each nonzero is one multiply-add with the weight as an immediate operand. A work-item computes
    one pixel of one image, or of two images in float16.

    Zero weights are skipped: a NaN or infinity in the input does not reach an output whose weights
    for that input are all zero.
    """

    op = "conv2d"
    name = "direct_sparse_compiled"
    rounds_sums = True
    dense = False

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if not device.assembles_ptx:
            return f"needs CUDA: {device.name} does not accept PTX"
        if _capability(device) < 80:
            return f"needs sm_80 or newer, {device.name} is {device.architecture}"
        density = problem.weights_info.density
        if density > DENSEST:
            return f"needs a density of at most {DENSEST:.0%}, has {density:.0%}"
        if (reason := too_large(problem)) is not None:
            return reason
        if problem.outputs[0].size == 0:
            return None
        if configs(problem, device.limits, most_lines=_MOST_LINES):
            return None
        if not (long := configs(problem, device.limits)):
            return (f"no tile fits the {device.limits.shared_bytes_opt_in} bytes of shared memory "
                    f"of {device.name} and the limits on work-items, registers and copies")
        shortest = min(lines(GeneratedTiling(problem, config)) for config in long)
        return (f"generated code of {shortest / 1e6:.1f} million instructions would take "
                f"{shortest / _LINES_PER_SECOND:.0f} s to build, more than the limit of "
                f"{MOST_SECONDS:.0f} s; use direct_sparse_table, which generates no code")

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        if problem.outputs[0].size == 0:
            yield _variant(problem, GeneratedConfig(1, 1, 1, 1, 1))
            return
        as_fp32 = configs(problem, device.limits, most_lines=_MOST_LINES)
        as_fp16 = (configs(problem, device.limits, halves=True, most_lines=_MOST_LINES)
                  if problem.batch % 2 == 0 else ())
        for index in range(max(len(as_fp32), len(as_fp16))):
            if index < len(as_fp32):
                yield _variant(problem, as_fp32[index])
            if index < len(as_fp16):
                yield _variant(problem, as_fp16[index]).as_fp16

    def expected_us(self, problem: Conv2dProblem, variant: Variant, device: Device) -> float | None:
        if variant.outputs[0].size == 0:
            return None
        return estimated_us(_tiling(problem, variant), device.limits)

    def kernel_launches(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                        device: Device) -> list[Launch]:
        """Return the launches.

        Raises CompileError if the assembler fails.
        """
        division = _tiling(problem, variant)
        kernel = device.assemble(self.name, _key(division, weights),
                                 partial(_program, division, weights.arrays))
        fused = is_short(problem.epilogue.expression)
        tensors = range(1, len(variant.inputs)) if fused else ()
        arguments = (input_buffer(0), output_buffer(0), *map(input_buffer, tensors))
        launches = [Launch(kernel, division.groups, (division.work_group,), arguments,
                           division.shared_bytes)]
        if not fused:
            launches += epilogue_pass_launches(problem.epilogue, weights, device,
                                               variant.outputs[0], 1)
        return launches


def _tiling(problem: Conv2dProblem, variant: Variant) -> GeneratedTiling:
    return GeneratedTiling(problem, sizes_of(GeneratedConfig, variant), variant.precision == "fp16")


def _program(division: GeneratedTiling, arrays: Mapping[str, np.ndarray]) -> PtxProgram:
    """Return the PTX program for a division, with the layer's arrays as constants."""
    return generate(division, arrays).program


def _key(division: GeneratedTiling, weights: Weights) -> tuple[str, ...]:
    """Return the cache key of the generated code.

    The key identifies the generator, the problem, its division, and the weights and constants,
    which are immediate operands of the instructions.
    """
    # the code depends on the values of the weights, not on facts about weights and inputs
    problem = replace(division.problem, weights_info=WeightsInfo(), facts=())
    what = {"problem": canonical(problem), "config": asdict(division.config),
            "halves": division.halves}
    return source_hash(generate.__module__), json.dumps(what, sort_keys=True), weights.digest


def _variant(problem: Conv2dProblem, config: GeneratedConfig) -> Variant:
    return Variant(config_of(config), *specs_in(problem, "CHWN", "CHWN"), builds_long=True)


def _capability(device: Device) -> int:
    return int("".join(filter(str.isdigit, device.architecture)))
