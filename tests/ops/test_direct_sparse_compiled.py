from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device, Limits
from gossamer.device.ptx import Address, Bits, Code
from gossamer.expression import apply
from gossamer.ops.algorithm import Epilogue, Variant, Weights, WeightsInfo
from gossamer.ops.conv2d.direct_sparse_compiled import DirectSparseCompiled
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.reference import reference
from gossamer.ops.conv2d.sparse_blocks import blocks
from gossamer.ops.conv2d.sparse_configs import configs, estimate, lines
from gossamer.ops.conv2d.sparse_ptx import generate
from gossamer.ops.conv2d.sparse_shape import Config, Division
from gossamer.tensor import from_memory, to_memory
from tests.ops.harness import check, random_inputs, random_weights
from tests.ops.ptx_machine import Fault, Machine, Memory
from tests.tolerances import normalised_error, tolerance

H200 = Limits(units=132, memory_bytes=2**37, local_bytes=48 * 1024, local_bytes_opt_in=227 * 1024,
              group_size=1024, subgroup_size=32)

BIAS_RESIDUAL_CLIP = Epilogue(
    apply("add").then(apply("add")).then(apply("clip", 0.0, 6.0)), ("channel", "tensor"))
SCALE_PRELU = Epilogue(apply("mul").then(apply("prelu")).then(apply("leaky_relu", 0.1)),
                       ("channel", "channel"))
BIAS_SIGMOID = Epilogue(apply("add").then(apply("sigmoid")), ("channel",))
EPILOGUES = (Epilogue(), BIAS_RESIDUAL_CLIP, SCALE_PRELU,
             Epilogue(apply("sub").then(apply("relu")), ("tensor",)))


class PtxDevice(Device):
    """Takes programs in PTX and records what is done with their kernels."""

    api = "cuda"

    def __init__(self, architecture: str = "sm_90") -> None:
        self.index, self.description, self.driver = 0, "records", ""
        self.limits, self.architecture = H200, architecture
        self.done: list[tuple[Any, ...]] = []
        self.streams = 0

    def assemble(self, programs: Sequence[Any]) -> list[Any]:
        return list(programs)

    def compile(self, source: Any) -> Any:
        return source.function

    def create_stream(self) -> Any:
        self.streams += 1
        return f"stream {self.streams}"

    def wait(self, waiting: Any, awaited: Any) -> None:
        self.done.append(("wait", waiting, awaited))

    def keep(self, *objects: Any) -> None:
        self.done.append(("keep", *objects))

    def launch(self, kernel: Any, groups: Any, group_size: Any, arguments: Any, *,
               local_bytes: int = 0, stream: Any = None) -> None:
        self.done.append(("launch", kernel, groups, stream))

    def _nothing(self, *arguments: Any, **options: Any) -> Any:
        return None

    empty = upload = write = read = copy = synchronize = time = _nothing


def sparse(problem: Conv2dProblem, density: float, seed: int = 0) -> dict[str, np.ndarray]:
    """Random constants, with weights of that density."""
    arrays = random_weights(problem, seed)
    kept = np.random.default_rng(seed).random(arrays["weight"].shape) < density
    arrays["weight"] = np.where(kept, arrays["weight"], np.float32(0))
    return arrays


def with_density(problem: Conv2dProblem, density: float) -> Conv2dProblem:
    return replace(problem, weights_info=WeightsInfo(density, "some"))


def run(problem: Conv2dProblem, config: Config, arrays: Mapping[str, np.ndarray],
        inputs: Sequence[np.ndarray], *, halves: bool = False, late: bool = False) -> np.ndarray:
    """The result of the generated kernels on a machine for PTX."""
    division = Division(problem, config, halves)
    dtype = "float16" if halves else "float32"
    *specs, out = (replace(spec, layout="CHWN", dtype=dtype)
                   for spec in (*problem.inputs, *problem.outputs))
    memory = Memory()
    addresses = [memory.add(to_memory(array, spec))
                 for array, spec in zip(inputs, specs, strict=True)]
    empty = np.full(out.stored_shape, np.nan, out.stored_dtype)
    target = memory.add(empty)
    sources = memory.bytes[:target].copy()
    for made in generate(division, arrays):
        places = [addresses[0], target, *addresses[1:]][:len(made.parameters)]
        machine = Machine(made.code, memory, dict(zip(made.parameters, places, strict=True)),
                          division.local_bytes, late=late)
        machine.launch((division.groups[0], made.blocks), division.group)
    assert (memory.bytes[:target] == sources).all()
    assert (memory.bytes[target + empty.nbytes:] == 0xFF).all()
    return from_memory(memory.read(target, empty).copy(), out)


def check_config(problem: Conv2dProblem, config: Config, arrays: Mapping[str, np.ndarray],
                 halves: bool = False) -> None:
    """Right, and the same to the last bit whatever the order of warps and copies."""
    inputs = random_inputs(problem)
    early, late = (run(problem, config, arrays, inputs, halves=halves, late=late)
                   for late in (False, True))
    assert early.tobytes() == late.tobytes()
    expected = reference(problem, inputs, arrays)[0]
    assert normalised_error(early, expected) <= tolerance("conv2d", "fp16" if halves else "fp32")


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@st.composite
def problems(draw: st.DrawFn, batches: Sequence[int]) -> Conv2dProblem:
    groups = draw(st.sampled_from([1, 1, 2]))
    return Conv2dProblem(
        draw(st.sampled_from(batches)), groups * draw(st.sampled_from([1, 3, 5])),
        draw(st.integers(5, 9)), draw(st.integers(5, 8)), groups * draw(st.sampled_from([1, 4, 7])),
        draw(pairs), draw(pairs), tuple(draw(st.integers(0, 2)) for _ in range(4)),
        draw(st.tuples(st.integers(1, 2), st.integers(1, 2))), groups,
        draw(st.sampled_from(EPILOGUES)))


@given(problem=problems((1, 2, 3, 4, 9)), density=st.sampled_from([0.05, 0.3, 1.0]),
       choice=st.integers(0, 30))
@settings(max_examples=25)
def test_any_geometry(problem: Conv2dProblem, density: float, choice: int) -> None:
    found = configs(with_density(problem, density), H200)
    check_config(problem, found[choice % len(found)], sparse(problem, density))


@given(problem=problems((2, 6)), density=st.sampled_from([0.05, 0.3]), choice=st.integers(0, 30))
@settings(max_examples=15)
def test_any_geometry_in_halves(problem: Conv2dProblem, density: float, choice: int) -> None:
    found = configs(with_density(problem, density), H200, halves=True)
    check_config(problem, found[choice % len(found)], sparse(problem, density), halves=True)


@pytest.mark.parametrize("config", [
    Config(12, 3, 5, 4, 4), Config(5, 2, 2, 3, 3, streams=2), Config(6, 1, 9, 8, 6, streams=4),
    Config(4, 3, 3, 3, 8, teams=2, kernels=2), Config(12, 2, 1, 9, 4, teams=3),
    Config(3, 3, 2, 2, 1, resident=4), Config(7, 3, 4, 4, 2, streams=2, resident=2, kernels=3)])
def test_configs_that_fit_badly(config: Config) -> None:
    problem = Conv2dProblem(3, 16, 9, 8, 24, (3, 3), (1, 1), (1, 2, 1, 0), groups=2,
                            epilogue=BIAS_RESIDUAL_CLIP)
    check_config(problem, config, sparse(problem, 0.2))


@pytest.mark.parametrize("width", [4, 6, 8])
def test_one_image_is_copied_by_aligned_vectors(width: int) -> None:
    problem = Conv2dProblem(1, 3, 5, width, 4, (3, 3), pads=(1, 1, 1, 1))
    division = Division(problem, Config(4, 1, 5, width, 3))
    assert division.vector == {4: 16, 6: 8, 8: 16}[width]
    check_config(problem, division.config, sparse(problem, 0.4))


@pytest.mark.parametrize("streams, teams", [(1, 1), (4, 1), (1, 4)])
def test_long_sums_of_halves_go_to_float32(streams: int, teams: int) -> None:
    """300 terms of like sign: sums in float16 alone would be off by more than is allowed. The
    second config's stage alone is too long for some channels."""
    problem = Conv2dProblem(2, 150, 2, 2, 3, (2, 1))
    arrays = {"weight": np.abs(sparse(problem, 0.9)["weight"]) + np.float32(0.1)}
    inputs = [np.abs(array) for array in random_inputs(problem)]
    expected = reference(problem, inputs, arrays)[0]
    for stage in (20, 75):
        config = Config(3, 2, 1, 2, stage, streams=streams, teams=teams)
        for late in (False, True):
            result = run(problem, config, arrays, inputs, halves=True, late=late)
            assert normalised_error(result, expected) <= tolerance("conv2d", "fp16")


def test_layers_and_channels_of_zeros() -> None:
    problem = Conv2dProblem(2, 6, 5, 5, 8, (3, 3), pads=(1, 1, 1, 1), epilogue=SCALE_PRELU)
    arrays = sparse(problem, 0.3)
    arrays["weight"][:, 2:4] = 0
    arrays["weight"][3] = 0
    for config in (Config(4, 2, 3, 5, 2, streams=2), Config(8, 2, 5, 5, 6, teams=2)):
        check_config(problem, config, arrays)
        nothing = {**arrays, "weight": np.zeros_like(arrays["weight"])}
        assert (run(problem, config, nothing, random_inputs(problem)) == 0).all()


def test_weights_keep_their_bits() -> None:
    problem = Conv2dProblem(1, 4, 1, 1, 1, (1, 1))
    special = np.array([np.nan, -np.inf, 1e-42, -0.5], np.float32)
    arrays = {"weight": special.reshape(1, 4, 1, 1)}
    (made,) = generate(Division(problem, Config(1, 1, 1, 1, 4)), arrays)
    factors = [each.operands[2] for each in made.code.instructions if each.name == "fma.rn.f32"]
    assert factors == [Bits(bits) for bits in special.view(np.uint32).tolist()]
    assert "0f7FC00000" in made.program.text and "0fFF800000" in made.program.text


def test_blocks_have_like_numbers_of_nonzeros() -> None:
    problem = Conv2dProblem(1, 16, 3, 3, 60, (3, 3))
    arrays = random_weights(problem)
    kept = np.linspace(0.02, 0.5, 60)[:, None, None, None]
    arrays["weight"] *= np.random.default_rng(0).random(arrays["weight"].shape) < kept
    division = Division(problem, Config(16, 1, 1, 1, 1))
    found = blocks(division, arrays["weight"])
    assert sorted(channel for block in found for channel in block.channels) == list(range(60))
    sizes = [sum(block.terms(list(block.taps))) for block in found]
    assert sum(sizes) == np.count_nonzero(arrays["weight"])
    assert len(sizes) == 4 and max(sizes) <= 1.02 * min(sizes)


def test_an_input_is_read_once_for_all_nonzeros_of_its_tap() -> None:
    problem = Conv2dProblem(32, 8, 7, 7, 16, (3, 3), pads=(1, 1, 1, 1))
    arrays = sparse(problem, 0.4)
    (made,) = generate(Division(problem, Config(16, 32, 2, 2, 4)), arrays)
    names = [each.name for each in made.code.instructions]
    assert names.count("fma.rn.f32") == np.count_nonzero(arrays["weight"])
    assert names.count("ld.shared.f32") == np.count_nonzero(arrays["weight"].any(axis=0))


def test_addresses_of_large_tensors_stay_within_32_bits() -> None:
    problem = Conv2dProblem(1024, 128, 112, 112, 128, (1, 1))
    division = Division(problem, Config(128, 32, 1, 8, 128))
    (made,) = generate(division, sparse(problem, 0.05))
    offsets = [each.offset for instruction in made.code.instructions
               for each in instruction.operands if isinstance(each, Address)]
    assert max(offsets) < 2**31
    constants = [each for instruction in made.code.instructions if instruction.name == "add.s64"
                 for each in instruction.operands if isinstance(each, int)]
    assert max(constants) >= 2**30


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("halves", [False, True])
def test_programs_build_without_spills(architecture: str, halves: bool) -> None:
    nvjitlink = pytest.importorskip("gossamer.device.nvjitlink", exc_type=ImportError)
    problem = with_density(Conv2dProblem(64, 24, 14, 14, 64, (3, 3), pads=(1, 1, 1, 1),
                                         epilogue=BIAS_RESIDUAL_CLIP), 0.1)
    limits = H200 if architecture != "sm_80" else replace(H200, local_bytes_opt_in=163 * 1024)
    config = replace(configs(problem, limits, halves)[0], kernels=1)
    arrays = sparse(problem, 0.1)
    (made,) = generate(Division(problem, config, halves), arrays)
    cubin, info = nvjitlink.build(made.program, architecture, apart=halves)
    assert cubin[:4] == b"\x7fELF"
    assert info.spill_bytes == 0, f"{config} spills {info.spill_bytes} bytes"
    assert info.registers <= Division(problem, config, halves).registers


DENSE = Conv2dProblem(64, 128, 14, 14, 128, (3, 3), pads=(1, 1, 1, 1))


@pytest.mark.parametrize("problem, architecture, reason", [
    (DENSE, "sm_90", "density 100%"),
    (with_density(DENSE, 0.1), "sm_75", "sm_75"),
    (with_density(replace(DENSE, channels=4096, out_channels=4096), 0.3), "sm_90",
     "million instructions would take"),
    (with_density(replace(DENSE, channels=8192, out_channels=8192, groups=8192), 0.3), "sm_90",
     "million instructions would take"),
    (with_density(replace(DENSE, kernel=(3, 3), dilation=(1, 2000), width=4100), 0.1), "sm_90",
     "no tile fits"),
    (with_density(replace(DENSE, height=4000, width=4000), 0.1), "sm_90", "2^31 elements"),
])
def test_reasons(problem: Conv2dProblem, architecture: str, reason: str) -> None:
    told = DirectSparseCompiled().supports(problem, PtxDevice(architecture))
    assert told is not None and reason in told


def test_only_cuda_takes_ptx(device: Device) -> None:
    told = DirectSparseCompiled().supports(with_density(DENSE, 0.1), device)
    assert told is None if device.api == "cuda" else told is not None and "PTX" in told


def test_variants_fit_and_begin_in_float32() -> None:
    problem = with_density(DENSE, 0.1)
    variants = list(DirectSparseCompiled().variants(problem, PtxDevice()))
    assert variants[0].precision == "fp32"
    assert {variant.precision for variant in variants} == {"fp32", "fp16"}
    for variant in variants:
        halves = variant.precision == "fp16"
        division = Division(problem, Config(**dict(variant.config)), halves)
        assert division.local_bytes <= H200.local_bytes_opt_in
        assert division.group <= 1024 and division.registers >= division.block
        assert {spec.layout for spec in (*variant.inputs, *variant.outputs)} == {"CHWN"}
        assert variant.inputs[0].dtype == ("float16" if halves else "float32")
        assert estimate(division, H200).microseconds > 0
    odd = DirectSparseCompiled().variants(replace(problem, batch=3), PtxDevice())
    assert {variant.precision for variant in odd} == {"fp32"}


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("problem", [
    with_density(replace(DENSE, out_channels=96), 0.1),
    with_density(replace(DENSE, batch=2, height=2, width=2), 0.05),
    with_density(replace(DENSE, channels=96, out_channels=96, groups=96), 0.3)])
def test_how_long_code_gets_is_known_before(problem: Conv2dProblem, halves: bool) -> None:
    arrays = sparse(problem, problem.weights_info.density)
    for config in configs(problem, H200, halves)[::6]:
        division = Division(problem, config, halves)
        # factors of float16 are moves, which the assembler drops
        count = sum(instruction.name != "mov.b32" for made in generate(division, arrays)
                    for instruction in made.code.instructions)
        assert 0.7 < lines(division) / count < 1.4


def test_long_code_is_no_candidate() -> None:
    """Small blocks have instructions of their own for what large ones share."""
    problem = with_density(Conv2dProblem(1, 2048, 1, 1, 1000, (1, 1)), 0.1)
    every = configs(problem, H200)
    assert max(lines(Division(problem, config)) for config in every) > 60 * 13_000
    offered = list(DirectSparseCompiled().variants(problem, PtxDevice()))
    assert offered and all(lines(Division(problem, Config(**dict(variant.config)))) <= 60 * 13_000
                           for variant in offered)


@pytest.mark.parametrize("batch", [8, 33, 64])
def test_resident_groups_are_no_more_than_a_multiprocessor_holds(batch: int) -> None:
    problem = with_density(Conv2dProblem(batch, 64, 20, 17, 64, (3, 3), groups=4), 0.1)
    assert all(Division(problem, config).group * config.resident <= 2048
               for config in configs(problem, H200))


def launched(problem: Conv2dProblem, **changes: int) -> PtxDevice:
    """What a launch of the first variant does, its config changed."""
    device, algorithm = PtxDevice(), DirectSparseCompiled()
    variant = next(iter(algorithm.variants(problem, device)))
    variant = replace(variant, config=tuple({**dict(variant.config), **changes}.items()))
    held = Weights(sparse(problem, 0.1), device)
    state = algorithm.prepare(held, problem, variant, device)
    buffers: list[Any] = [None] * len(variant.inputs)
    algorithm.launch(state, buffers, buffers[:1], None, "main")
    return device


def test_several_kernels_run_between_the_streams_joints() -> None:
    problem = with_density(replace(DENSE, epilogue=BIAS_SIGMOID), 0.1)
    done = launched(problem, channels=43, kernels=3).done
    _, *streams = done[0]
    assert len(set(streams)) == 2
    assert done[:3] == [("keep", *streams), *(("wait", own, "main") for own in streams)]
    assert [(each[0], each[3]) for each in done[3:6]] == [
        ("launch", stream) for stream in ("main", *streams)]
    assert done[6:8] == [("wait", "main", own) for own in streams]
    assert done[8][1] == "epilogue_pass" and done[8][3] == "main" and len(done) == 9


def test_an_epilogue_that_is_long_follows_in_a_pass() -> None:
    kernels = [each[1] for each in launched(with_density(replace(DENSE, epilogue=BIAS_SIGMOID),
                                                         0.1), kernels=1).done]
    assert len(kernels) == 2 and kernels[1] == "epilogue_pass"


def test_nothing_is_launched_for_nothing() -> None:
    assert launched(with_density(replace(DENSE, batch=0), 0.1)).done == []


@pytest.mark.sanitize
def test_on_a_gpu(cuda: Device) -> None:
    def own(variants: list[Variant]) -> list[Variant]:
        return [each for each in variants if "resident" in dict(each.config)]

    for batch, epilogue in ((1, Epilogue()), (2, BIAS_RESIDUAL_CLIP), (5, BIAS_SIGMOID),
                            (64, SCALE_PRELU)):
        problem = with_density(Conv2dProblem(batch, 12, 9, 7, 40, (3, 3), (1, 2), (1, 0, 1, 2),
                                             groups=2, epilogue=epilogue), 0.2)
        ran = check(problem, cuda, weights=sparse(problem, 0.2), taken=own)
        assert len(ran) >= 4


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
