"""Tests generated code of sparse convolution in a PTX interpreter and through the assembler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gossamer.device.cuda.ptx import Address, Bits, Code
from gossamer.expression import apply
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.problem import Conv2dProblem, reference
from gossamer.ops.conv2d.sparse.generated.code import blocks, generate
from gossamer.ops.conv2d.sparse.generated.configs import configs
from gossamer.ops.conv2d.sparse.generated.tiling import WARP, GeneratedConfig, GeneratedTiling
from gossamer.tensor import pack, unpack
from tests.ops.conv2d.sparse.ptx_machine import Fault, Machine, Memory
from tests.ops.conv2d.sparse.sparse_weights import (
    BIAS_RESIDUAL_CLIP,
    EPILOGUES,
    SCALE_PRELU,
    sparse,
    with_density,
)
from tests.ops.conv2d.test_conv2d import small_problems
from tests.ops.harness import random_inputs, random_weights
from tests.simulated.device import H200
from tests.tolerances import normalised_error, tolerance


def run(problem: Conv2dProblem, config: GeneratedConfig, arrays: Mapping[str, np.ndarray],
        inputs: Sequence[np.ndarray], *, halves: bool = False, late: bool = False,
        backward: bool = False) -> np.ndarray:
    """Returns the result of the generated kernels in a PTX interpreter."""
    division = GeneratedTiling(problem, config, halves)
    dtype = "float16" if halves else "float32"
    *specs, out = (spec.with_format(layout="CHWN", dtype=dtype)
                   for spec in (*problem.inputs, *problem.outputs))
    memory = Memory()
    addresses = [memory.add(pack(array, spec))
                 for array, spec in zip(inputs, specs, strict=True)]
    empty = np.full(out.stored_shape, np.nan, out.stored_dtype)
    target = memory.add(empty)
    sources = memory.bytes[:target].copy()
    kernel = generate(division, arrays)
    places = [addresses[0], target, *addresses[1:]][:len(kernel.parameters)]
    machine = Machine(kernel.code, memory, dict(zip(kernel.parameters, places, strict=True)),
                      division.shared_bytes, late=late, backward=backward)
    machine.launch(division.groups, division.work_group)
    assert (memory.bytes[:target] == sources).all()
    assert (memory.bytes[target + empty.nbytes:] == 0xFF).all()
    return unpack(memory.read(target, empty).copy(), out)


def check_config(problem: Conv2dProblem, config: GeneratedConfig, arrays: Mapping[str, np.ndarray],
                 halves: bool = False) -> None:
    """Checks that the result is right, and the same to the last bit in any order of warps and
    copies."""
    inputs = random_inputs(problem)
    first, *others = (run(problem, config, arrays, inputs, halves=halves, late=late,
                          backward=backward)
                      for late, backward in ((False, False), (True, True), (True, False)))
    assert all(first.tobytes() == other.tobytes() for other in others)
    expected = reference(problem, inputs, arrays)[0]
    assert normalised_error(first, expected) <= tolerance("conv2d", "fp16" if halves else "fp32")


def problems(batches: Sequence[int]) -> st.SearchStrategy[Conv2dProblem]:
    return small_problems(batches=batches, groups=[1, 1, 2], channels=[1, 3, 5],
                          out_channels=[1, 4, 7], epilogues=EPILOGUES)


@pytest.mark.slow
@pytest.mark.parametrize("halves", [False, True])
@given(data=st.data(), choice=st.integers(0, 30))
@settings(max_examples=20)
def test_any_geometry(halves: bool, data: st.DataObject, choice: int) -> None:
    density = data.draw(st.sampled_from([0.0, 0.05, 0.3, *([] if halves else [1.0])]))
    problem = data.draw(problems((2, 6) if halves else (1, 2, 3, 4, 9)))
    candidates = configs(with_density(problem, density), H200.limits, halves=halves)
    assume(candidates)  # no tile fits some strides
    check_config(problem, candidates[choice % len(candidates)], sparse(problem, density),
                 halves=halves)


@pytest.mark.slow
@pytest.mark.parametrize("config", [
    GeneratedConfig(12, 3, 5, 4, 4),
    GeneratedConfig(5, 2, 2, 3, 3, staggered_entries=2),
    GeneratedConfig(6, 1, 9, 8, 6, staggered_entries=4),
    GeneratedConfig(4, 3, 3, 3, 8, k_groups=2),
    GeneratedConfig(12, 2, 1, 9, 4, k_groups=3),
    GeneratedConfig(3, 3, 2, 2, 1, blocks_per_unit=4),
    GeneratedConfig(7, 3, 4, 4, 2, staggered_entries=2, blocks_per_unit=2)])
def test_configs_that_fit_badly(config: GeneratedConfig) -> None:
    problem = Conv2dProblem(3, 16, 9, 8, 24, (3, 3), (1, 1), (1, 2, 1, 0), groups=2,
                            epilogue=BIAS_RESIDUAL_CLIP)
    check_config(problem, config, sparse(problem, 0.2))


@pytest.mark.slow
@pytest.mark.parametrize("config", [
    GeneratedConfig(12, 3, 5, 4, 1, prefetch_warps=1),
    GeneratedConfig(6, 3, 9, 8, 8, staggered_entries=4, prefetch_warps=1),
    GeneratedConfig(6, 3, 9, 8, 4, staggered_entries=4, prefetch_warps=1),
    GeneratedConfig(6, 3, 9, 8, 3, staggered_entries=2, prefetch_warps=1),
    GeneratedConfig(6, 3, 9, 8, 2, staggered_entries=2, prefetch_warps=1),
    GeneratedConfig(3, 3, 2, 2, 4, staggered_entries=4, prefetch_warps=1)])
def test_prefetch_warps(config: GeneratedConfig) -> None:
    """The configs have one, two, three, four and more stages, and one has more prefetch warps than
    others; the blocks of one group have nothing to do."""
    # small tiles of a small image, of which there are several all the same
    height, width = (9, 8) if config.channels > 3 else (5, 4)
    problem = Conv2dProblem(3, 16, height, width, 24, (3, 3), (1, 1), (1, 2, 1, 0), groups=2,
                            epilogue=BIAS_RESIDUAL_CLIP)
    arrays = sparse(problem, 0.2)
    arrays["weight"][:12] = 0
    check_config(problem, config, arrays)


def test_prefetch_warps_share_what_the_other_warps_run_in_full() -> None:
    problem = Conv2dProblem(4, 16, 9, 8, 6, (3, 3))
    division = GeneratedTiling(
        problem, GeneratedConfig(6, 4, 9, 8, 4, staggered_entries=4, prefetch_warps=1))
    kernel = generate(division, sparse(problem, 0.2))
    memory = Memory()
    addresses = {name: memory.add(np.zeros(size, np.float32)) for name, size in zip(
        kernel.parameters, (problem.inputs[0].size, problem.outputs[0].size), strict=True)}
    machine = Machine(kernel.code, memory, addresses, division.shared_bytes)
    machine.launch(division.groups, division.work_group)
    workers = division.workers // WARP
    products = [machine.products[warp] for warp in range(division.work_group // WARP)]
    assert products[:workers] == [max(products)] * workers
    assert sum(products[workers:]) == max(products) > max(products[workers:])
    # other warps may copy to what is read, so that the numbers would be neither old nor new
    assert all(bool(machine.loads[warp]) == (warp < workers) for warp in range(len(products)))


@pytest.mark.slow
def test_prefetch_warps_in_halves() -> None:
    problem = Conv2dProblem(4, 16, 9, 8, 24, (3, 3), pads=(1, 2, 1, 0))
    for config in (GeneratedConfig(6, 4, 9, 8, 2, staggered_entries=2, prefetch_warps=1),
                   GeneratedConfig(6, 4, 9, 8, 3, prefetch_warps=1)):
        check_config(problem, config, sparse(problem, 0.2), halves=True)


def test_prefetch_warps_are_offered_for_large_batches() -> None:
    problem = with_density(Conv2dProblem(64, 256, 14, 14, 256, (3, 3), pads=(1, 1, 1, 1)), 0.03)
    candidates = configs(problem, H200.limits)
    assert candidates[0].prefetch_warps
    assert not all(config.prefetch_warps for config in candidates[:3])
    assert all(GeneratedTiling(problem, config).work_group <= H200.limits.work_group_size
               for config in candidates)
    one = configs(replace(problem, batch=1), H200.limits)
    assert not any(config.prefetch_warps for config in one)


@pytest.mark.parametrize("width", [4, 6, 8])
def test_one_image_is_copied_by_aligned_vectors(width: int) -> None:
    problem = Conv2dProblem(1, 3, 5, width, 4, (3, 3), pads=(1, 1, 1, 1))
    division = GeneratedTiling(problem, GeneratedConfig(4, 1, 5, width, 3))
    assert division.vector == {4: 16, 6: 8, 8: 16}[width]
    check_config(problem, division.config, sparse(problem, 0.4))


@pytest.mark.parametrize("columns", [2, 3, 4, 6])
@pytest.mark.parametrize("stride", [1, 2])
def test_vectors_are_aligned_in_every_tile(columns: int, stride: int) -> None:
    problem = Conv2dProblem(1, 3, 5, 16, 4, (3, 3), (1, stride), pads=(1, 1, 1, 1))
    division = GeneratedTiling(problem, GeneratedConfig(4, 1, 5, columns, 3))
    assert division.tiles[2] > 1
    assert columns * stride * division.itemsize % division.vector == 0
    check_config(problem, division.config, sparse(problem, 0.4))


@pytest.mark.parametrize("staggered_entries, k_groups", [(1, 1), (4, 1), (1, 4)])
def test_long_sums_of_halves_go_to_float32(staggered_entries: int, k_groups: int) -> None:
    """300 terms have the same sign: sums in float16 alone would be off by more than is allowed.
    A single stage of the second config is too long for some channels."""
    problem = Conv2dProblem(2, 150, 2, 2, 3, (2, 1))
    arrays = {"weight": np.abs(sparse(problem, 0.9)["weight"]) + np.float32(0.1)}
    inputs = [np.abs(array) for array in random_inputs(problem)]
    expected = reference(problem, inputs, arrays)[0]
    for stage in (20, 75):
        config = GeneratedConfig(3, 2, 1, 2, stage, staggered_entries=staggered_entries,
                                 k_groups=k_groups)
        for late in (False, True):
            result = run(problem, config, arrays, inputs, halves=True, late=late)
            assert normalised_error(result, expected) <= tolerance("conv2d", "fp16")
        terms: dict[Any, int] = {}
        kernel = generate(GeneratedTiling(problem, config, True), arrays)
        for name, operands, _ in kernel.code.instructions:
            if name == "fma.rn.f16x2":
                terms[operands[0]] = terms.get(operands[0], 0) + 1
                assert terms[operands[0]] <= 64
            elif name == "mov.b32" and operands[1] == 0:
                terms[operands[0]] = 0


def test_layers_and_channels_of_zeros() -> None:
    problem = Conv2dProblem(2, 6, 5, 5, 8, (3, 3), pads=(1, 1, 1, 1), epilogue=SCALE_PRELU)
    arrays = sparse(problem, 0.3)
    arrays["weight"][:, 2:4] = 0
    arrays["weight"][3] = 0
    for config in (GeneratedConfig(4, 2, 3, 5, 2, staggered_entries=2),
                   GeneratedConfig(8, 2, 5, 5, 6, k_groups=2)):
        check_config(problem, config, arrays)
        zeros = {**arrays, "weight": np.zeros_like(arrays["weight"])}
        assert (run(problem, config, zeros, random_inputs(problem)) == 0).all()


@pytest.mark.parametrize("epilogue", [
    Epilogue(apply("relu")), Epilogue(apply("clip", 0.0, 6.0)),
    Epilogue(apply("max"), ("channel",)), Epilogue(apply("min"), ("tensor",))])
def test_a_nan_stays_one(epilogue: Epilogue) -> None:
    problem = Conv2dProblem(2, 3, 3, 3, 4, (1, 1), epilogue=epilogue)
    arrays = {name: np.abs(array) + np.float32(0.1)
              for name, array in random_weights(problem).items()}
    x, *others = random_inputs(problem)
    x[1, 2, 0, 1] = np.nan
    result = run(problem, GeneratedConfig(4, 2, 3, 3, 3), arrays, [x, *others])
    assert np.isnan(result[1, :, 0, 1]).all() and np.isnan(result).sum() == 4


def test_weights_keep_their_bits() -> None:
    problem = Conv2dProblem(1, 4, 1, 1, 1, (1, 1))
    special = np.array([np.nan, -np.inf, 1e-42, -0.5], np.float32)
    arrays = {"weight": special.reshape(1, 4, 1, 1)}
    kernel = generate(GeneratedTiling(problem, GeneratedConfig(1, 1, 1, 1, 4)), arrays)
    factors = [instruction.operands[2] for instruction in kernel.code.instructions
               if instruction.name == "fma.rn.f32"]
    assert factors == [Bits(bits) for bits in special.view(np.uint32).tolist()]
    assert "0f7FC00000" in kernel.program.text and "0fFF800000" in kernel.program.text


def test_blocks_have_similar_numbers_of_nonzeros() -> None:
    problem = Conv2dProblem(1, 16, 3, 3, 60, (3, 3))
    arrays = random_weights(problem)
    densities = np.linspace(0.02, 0.5, 60)[:, None, None, None]
    arrays["weight"] *= np.random.default_rng(0).random(arrays["weight"].shape) < densities
    division = GeneratedTiling(problem, GeneratedConfig(16, 1, 1, 1, 1))
    channel_blocks = blocks(division, arrays["weight"])
    dealt_channels = sorted(channel for block in channel_blocks for channel in block.channels)
    assert dealt_channels == list(range(60))
    sizes = [sum(block.terms(list(block.taps))) for block in channel_blocks]
    assert sum(sizes) == np.count_nonzero(arrays["weight"])
    assert len(sizes) == 4 and max(sizes) <= 1.02 * min(sizes)


def test_an_input_is_read_once_for_all_nonzeros_of_its_tap() -> None:
    problem = Conv2dProblem(32, 8, 7, 7, 16, (3, 3), pads=(1, 1, 1, 1))
    arrays = sparse(problem, 0.4)
    kernel = generate(GeneratedTiling(problem, GeneratedConfig(16, 32, 2, 2, 4)), arrays)
    names = [instruction.name for instruction in kernel.code.instructions]
    assert names.count("fma.rn.f32") == np.count_nonzero(arrays["weight"])
    assert names.count("ld.shared.f32") == np.count_nonzero(arrays["weight"].any(axis=0))


def test_addresses_of_large_tensors_stay_within_32_bits() -> None:
    problem = Conv2dProblem(1024, 128, 112, 112, 128, (1, 1))
    division = GeneratedTiling(problem, GeneratedConfig(128, 32, 1, 8, 128))
    kernel = generate(division, sparse(problem, 0.05))
    offsets = [operand.offset for instruction in kernel.code.instructions
               for operand in instruction.operands if isinstance(operand, Address)]
    assert max(offsets) < 2**31
    constants = [operand for instruction in kernel.code.instructions
                 if instruction.name == "add.s64"
                 for operand in instruction.operands if isinstance(operand, int)]
    assert max(constants) >= 2**30


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("halves", [False, True])
def test_programs_build_without_spills(architecture: str, halves: bool) -> None:
    nvjitlink = pytest.importorskip("gossamer.device.cuda.nvjitlink", exc_type=ImportError)
    problem = with_density(Conv2dProblem(64, 24, 14, 14, 64, (3, 3), pads=(1, 1, 1, 1),
                                         epilogue=BIAS_RESIDUAL_CLIP), 0.1)
    limits = replace(H200.limits, shared_bytes_opt_in=163 * 1024) if architecture == "sm_80" else (
        H200.limits)
    config = configs(problem, limits, halves)[0]
    arrays = sparse(problem, 0.1)
    kernel = generate(GeneratedTiling(problem, config, halves), arrays)
    cubin, info = nvjitlink.build(kernel.program, architecture)
    assert cubin[:4] == b"\x7fELF"
    assert info.spill_bytes == 0, f"{config} spills {info.spill_bytes} bytes"
    assert info.registers <= GeneratedTiling(problem, config, halves).registers


def test_the_machine_finds_planted_faults() -> None:
    code = Code()
    item = code.get("mov.u32", "r", "%tid.x")
    place = code.get("mad.lo.u32", "r", item, 4, 0)
    code.emit("cp.async.ca.shared.global", Address(place), Address(
        code.get("mad.wide.u32", "q", item, 4, code.get("ld.param.u64", "q", Address("x")))), 4)
    code.emit("cp.async.commit_group")
    missing_wait = len(code.instructions)
    code.emit("cp.async.wait_group", 0)
    code.emit("st.global.f32", Address(code.get(
        "mad.wide.u32", "q", item, 4, code.get("ld.param.u64", "q", Address("y")))),
        code.get("ld.shared.f32", "f", Address(place)))
    code.emit("exit")
    values = np.arange(32, dtype=np.float32)

    def copied(late: bool, **places: int) -> np.ndarray:
        memory = Memory()
        x, y = memory.add(values), memory.add(np.zeros(32, np.float32))
        Machine(code, memory, {"x": x, "y": y, **places}, 128, late=late).launch((1, 1), 32)
        return memory.read(y, values)

    assert all((copied(late) == values).all() for late in (False, True))
    with pytest.raises(Fault, match="beside the arrays"):
        copied(False, x=0)
    del code.instructions[missing_wait]
    with pytest.raises(Fault, match="under way"):
        copied(True)
