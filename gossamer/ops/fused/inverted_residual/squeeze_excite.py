"""The algorithm squeeze_excite: a MobileNet block with squeeze-and-excite.

The block is computed by three kernels in the dialect common to CUDA and OpenCL, which run on any
device that compiles kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gossamer.device.base import Buffer, Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.conv2d.common import config_of, sizes_of
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.fused.algorithm import FusionAlgorithm
from gossamer.ops.fused.inverted_residual.block import (
    EXCITED_PATTERNS,
    Block,
    excited_block_of,
    reason_unfused,
)
from gossamer.ops.fused.inverted_residual.excited_block import (
    CONFIGS,
    RunTimeBuffer,
    Tile,
    block_launch,
    fitting_tiles,
    pack_weights,
)
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import cannot_compile, cannot_index, layout_variants
from gossamer.ops.weights import Weights
from gossamer.tensor import default_spec

_SOURCE = Path(__file__).with_name("excite.cl")
_WORK_GROUP = 128


class SqueezeExcite(FusionAlgorithm):
    """A block with a squeeze-and-excite layer in three kernels.

    The first kernel computes the expansion and the depthwise convolution, and sums each channel
    over each tile. The second kernel computes the gates. The third kernel loads the depthwise
    results, multiplies them by the gates and computes the projection.
    """

    name = "squeeze_excite"
    patterns = EXCITED_PATTERNS

    def recognises(self, problem: FusionProblem) -> bool:
        return excited_block_of(problem) is not None

    def supports(self, problem: FusionProblem, device: Device) -> str | None:
        block = excited_block_of(problem)
        if block is None:
            return "the layers are not a block of this kind"
        if (reason := cannot_compile(problem, device) or reason_unfused(block)) is not None:
            return reason
        if (reason := cannot_index([default_spec((block.depthwise.pixels, block.hidden))],
                                   device)) is not None:
            return reason
        if not fitting_tiles(block, device) or _gate_bytes(block) > device.limits.shared_bytes:
            return (f"{block.hidden} hidden and {block.out_channels} output channels do not "
                    f"fit the registers and the {device.limits.shared_bytes} bytes of shared "
                    "memory of a work-group")
        return None

    def variants(self, problem: FusionProblem, device: Device) -> Iterator[Variant]:
        block = excited_block_of(problem)
        assert block is not None
        for tile in fitting_tiles(block, device)[:CONFIGS]:
            for plain in layout_variants(problem, ("NHWC",), config_of(tile)):
                for variant in (plain, plain.as_fp16):
                    yield replace(variant, workspace=_Workspace(block, variant, device).nbytes)

    def expected_us(self, problem: FusionProblem, variant: Variant, device: Device) -> float | None:
        block = excited_block_of(problem)
        assert block is not None
        return sizes_of(Tile, variant).expected_us(block, device)

    def launch_count(self, variant: Variant) -> int:
        return 3

    def prepare(self, weights: Weights, problem: FusionProblem, variant: Variant,
                device: Device) -> State:
        block = excited_block_of(problem)
        assert block is not None
        if variant.outputs[0].size == 0:
            return State(problem, variant, device)
        tile, memory = sizes_of(Tile, variant), _Workspace(block, variant, device)
        return State(problem, variant, device, [
            block_launch(weights, block, tile, variant, device, input_buffer(0), memory.hidden,
                         totals=memory.totals),
            _gates_launch(weights, block, tile, device, memory),
            block_launch(weights, block, tile, variant, device, memory.hidden, output_buffer(0),
                         gates=memory.gates)])


class _Workspace:
    """The three tensors in a variant's workspace.

    hidden: results of the depthwise convolution.
    totals: sum of each channel over each tile.
    gates: the gates.
    nbytes: bytes of the workspace.
    """

    def __init__(self, block: Block, variant: Variant, device: Device) -> None:
        tile, p = sizes_of(Tile, variant), block.depthwise
        hidden = tile.hidden(block)
        sizes = (p.pixels * hidden * variant.outputs[0].stored_dtype.itemsize,
                 4 * p.batch * tile.count(block) * hidden, 4 * p.batch * hidden)
        self.nbytes = 0
        self._parts = []
        for size in sizes:
            self._parts.append((self.nbytes, size))
            self.nbytes += -(-size // device.alignment) * device.alignment

    @property
    def hidden(self) -> RunTimeBuffer:
        return self._part(0)

    @property
    def totals(self) -> RunTimeBuffer:
        return self._part(1)

    @property
    def gates(self) -> RunTimeBuffer:
        return self._part(2)

    def _part(self, number: int) -> RunTimeBuffer:
        def part(inputs: Sequence[Buffer], outputs: Sequence[Buffer],
                 workspace: Buffer | None) -> Buffer:
            assert workspace is not None
            return workspace.view(*self._parts[number])
        return part


def _gate_parts(block: Block) -> int:
    """Return how many work-items together compute one output of the squeezing convolution."""
    assert block.excite is not None
    return max(1, _WORK_GROUP // block.excite.squeezed)


def _gate_bytes(block: Block) -> int:
    """Return the bytes of shared memory per work-group of the kernel that computes the gates."""
    assert block.excite is not None
    return 4 * (block.hidden + _gate_parts(block) * block.excite.squeezed)


def _gates_launch(weights: Weights, block: Block, tile: Tile, device: Device,
                  memory: _Workspace) -> Launch:
    """Return the launch that computes the gates from the sums over tiles."""
    layer, p = block.excite, block.depthwise
    assert layer is not None
    squeeze, excite = block.part(layer.squeeze), block.part(layer.excite)
    source = KernelSource.of(_SOURCE, "excite", {
        "WORK_GROUP_SIZE": _WORK_GROUP, "PARTS": _gate_parts(block), "HIDDEN": block.hidden,
        "SQUEEZED": layer.squeezed,
        **epilogue_macros(layer.squeeze.epilogue, prefix="SQUEEZE_"),
        **epilogue_macros(layer.excite.epilogue, prefix="EXCITE_")})
    return Launch(
        device.compile(source), (p.batch,), (_WORK_GROUP,),
        (memory.totals, weights.packed("squeeze", pack_weights(squeeze, layer.squeezed)),
         weights.packed("excite", pack_weights(excite, block.hidden)), memory.gates,
         tile.hidden(block), tile.count(block), 1 / (p.out_height * p.out_width),
         *epilogue_arguments(layer.squeeze.epilogue, weights, 0, layer.squeezed,
                             prefix=f"{squeeze}."),
         *epilogue_arguments(layer.excite.epilogue, weights, 0, block.hidden,
                             prefix=f"{excite}.")))
