"""PTX for a sparse convolution whose weights are immediate operands of its instructions.

The weights are compiled into the kernel, as published by Z. Wang, "SparseRT: accelerating
unstructured sparsity on GPUs for deep learning inference", PACT 2020.

A work-item holds in registers the sums of one pixel and image (two images in float16) for all
channels of a block. An input is read once for all nonzeros of its tap, and each nonzero is one
multiply-add with an immediate factor. The batch is the innermost axis of the inputs. Inputs are
copied to shared memory and padded there, so that no tap has to test for the border.

A stage is the input channels that are computed between two barriers. Warps that start at different
parts of a stage's code fetch instructions in parallel. Prefetch warps, if the config has any, fetch
the code one stage before it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gossamer.device.cuda.ptx import Address, Bits, Code, Instruction, PtxProgram, kernel
from gossamer.ops.conv2d.common import rounded
from gossamer.ops.conv2d.sparse.generated.epilogue import (
    Epilogued,
    Results,
    tile_indices,
    unpacked,
)
from gossamer.ops.conv2d.sparse.generated.tiling import WARP, GeneratedTiling

Taps = list[tuple[int, int, list[tuple[int, int]]]]
"""The taps of an input channel at which a block has nonzeros. Each tap is (row, column, nonzeros).
Each nonzero is (index of its output channel within the block, bits of its value)."""


@dataclass(frozen=True)
class ChannelBlock:
    """A block of output channels with their nonzeros.

    group: index of the convolution's group to which the block belongs.
    channels: the output channels.
    taps: for each input channel in which the block has nonzeros, the taps. The keys are the indices
    of the input channels within the group.
    """

    group: int
    channels: tuple[int, ...]
    taps: dict[int, Taps]

    def terms(self, channels: Sequence[int]) -> list[int]:
        """Return the number of nonzeros of each output channel in the given input channels."""
        counts = [0] * len(self.channels)
        for c in channels:
            for _, _, products in self.taps[c]:
                for b, _ in products:
                    counts[b] += 1
        return counts


def blocks(division: GeneratedTiling, weight: np.ndarray) -> list[ChannelBlock]:
    """Divide the output channels into blocks with similar numbers of nonzeros."""
    problem = division.problem
    weight = np.asarray(weight, np.float32)
    if division.halves:
        weight = rounded(weight)
    bits = weight.view(np.uint16 if division.halves else np.uint32)
    result = []
    for group in range(problem.groups):
        first = group * problem.group_out_channels
        counts = np.count_nonzero(weight[first:first + problem.group_out_channels], axis=(1, 2, 3))
        members: list[list[int]] = [[] for _ in range(division.blocks)]
        sizes = np.zeros(division.blocks, np.int64)
        for channel in np.argsort(-counts, kind="stable"):
            with_room = [i for i in range(division.blocks) if len(members[i]) < division.block]
            least = min(with_room, key=lambda i: (sizes[i], len(members[i])))
            members[least].append(first + int(channel))
            sizes[least] += counts[channel]
        for channels in map(sorted, members):
            result.append(ChannelBlock(group, tuple(channels),
                                _taps(weight[channels], bits[channels])))
    return result


def _taps(weight: np.ndarray, bits: np.ndarray) -> dict[int, Taps]:
    """Return the taps of each input channel for the weights of a block."""
    taps: dict[int, Taps] = {}
    nonzeros = np.nonzero(weight.transpose(1, 2, 3, 0))
    values = bits.transpose(1, 2, 3, 0)[nonzeros]
    for c, r, s, b, value in zip(*(axis.tolist() for axis in nonzeros), values.tolist(),
                                 strict=True):
        channel_taps = taps.setdefault(c, [])
        if not channel_taps or channel_taps[-1][:2] != (r, s):
            channel_taps.append((r, s, []))
        channel_taps[-1][2].append((b, value))
    return taps


MOST_TERMS = 64
"""Maximum number of products that are accumulated in float16 before the sum is added to a float32
accumulator."""

_LARGEST_OFFSET = 2**30
"""Maximum offset in bytes of an address from its base register; PTX allows 32 bits."""


@dataclass(frozen=True)
class Generated:
    """A kernel that computes all blocks; its grid is tiles by blocks.

    code: instructions of the kernel.
    parameters: names of the kernel's pointer parameters: the input, the output and the epilogue's
    tensor operands.
    division: the division of the problem among work-groups.
    """

    code: Code
    parameters: tuple[str, ...]
    division: GeneratedTiling

    @property
    def program(self) -> PtxProgram:
        """The code as a PTX program."""
        return kernel("direct_sparse_compiled", self.parameters, self.code,
                      self.division.work_group, self.division.config.blocks_per_unit)


def generate(division: GeneratedTiling, arrays: Mapping[str, np.ndarray]) -> Generated:
    """Return the kernel for a problem's weights.

    The kernel applies the epilogue if it is short (see epilogue.py).
    """
    problem = division.problem
    epilogue = Epilogued(problem.epilogue, arrays, problem.out_channels)
    of_kernel = blocks(division, arrays["weight"])
    code = Code()
    labels = [code.label() for _ in of_kernel]
    code.dispatch(code.get("mov.u32", "r", "%ctaid.y"), labels)
    for label, block in zip(labels, of_kernel, strict=True):
        code.place(label)
        _BlockCode(code, division, block, epilogue)
    return Generated(code, ("x", "y", *epilogue.tensors), division)


@dataclass
class _Copy:
    """The registers with which a work-item copies one vector of every input channel.

    The vector has the same place in each channel. It is copied to shared memory.

    source: register with the address of the vector in `channel`.
    target: register with the address of the vector in the first slot of shared memory.
    inside: predicate register; true if the vector lies inside the image.
    channel: the input channel that `source` points to now.
    """

    source: str
    target: str
    inside: str
    channel: int = 0


class _BlockCode:
    """Emits the code of one block of output channels."""

    def __init__(self, code: Code, division: GeneratedTiling, block: ChannelBlock,
                 epilogue: Epilogued) -> None:
        self.code, self.division, self.block = code, division, block
        self._memory = self.code.get("mov.u32", "r", "shared_memory")
        self._item = self.code.get("mov.u32", "r", "%tid.x")
        self._tile = tile_indices(self.code, division)
        self._chunks = self._all_chunks()
        self._copies = [self._copy(index) for index in range(division.copies)]
        self._part = self._end = self._is_prefetch = ""
        item = self._item
        if division.config.k_groups > 1:
            self._part, item = self.code.divided(item, division.k_group)
        elif division.config.prefetch_warps:
            self._prefetch()
        elif division.config.staggered_entries > 1:
            warp, _ = self.code.divided(item, WARP)
            _, self._part = self.code.divided(warp, division.config.staggered_entries)
            self._end = self._part
        self._window = self._window_of(item)
        zero = ("mov.b32", "r", 0) if division.halves else ("mov.f32", "f", Bits(0))
        self._sums = [self.code.get(*zero) for _ in block.channels]
        self._wide: dict[int, tuple[str, str]] = {}
        self._pending = [0] * len(block.channels)
        before = len(self.code.instructions)
        self._walk()
        self.code.instructions[before:before] = [
            Instruction("mov.f32", (register, Bits(0))) for pair in self._wide.values()
            for register in pair]
        Results(self.code, division, block.channels, epilogue).write(self._values(), self._memory)

    def _prefetch(self) -> None:
        """Emit code that computes which part of each stage a warp runs first, and where it stops.

        `_part` is the first part, and the warp stops before part `_end`. A prefetch warp runs one
        part. Each other warp runs all parts, from the first on.
        """
        code, d = self.code, self.division
        self._is_prefetch = code.get("setp.ge.u32", "p", self._item, d.workers)
        number, _ = code.divided(code.get("add.u32", "r", self._item, -d.workers), WARP)
        _, behind = code.divided(code.get("add.u32", "r", number, 1), d.config.staggered_entries)
        self._part = code.get("selp.b32", "r", number, 0, self._is_prefetch)
        self._end = code.get("selp.b32", "r", behind, 0, self._is_prefetch)

    def _all_chunks(self) -> list[list[int]]:
        """Return the input channels in which the block has nonzeros, by stage."""
        used, stage = list(self.block.taps), self.division.config.stage
        return [used[first:first + stage] for first in range(0, len(used), stage)]

    def _copy(self, index: int) -> _Copy:
        """Emit code that computes the addresses of the work-item's vector number `index`.

        If the vector is outside of the image, the code also stores zeros in its place.
        """
        code, d = self.code, self.division
        problem, config = d.problem, d.config
        images, rows, columns = self._tile
        number = code.get("add.u32", "r", self._item, index * d.work_group)
        in_row = d.patch_columns * d.patch_pixel // d.vector
        row, vector = code.divided(number, in_row)
        column, byte = code.divided(code.get("mul.lo.u32", "r", vector, d.vector), d.patch_pixel)
        y = code.get("mad.lo.s32", "r", rows, config.rows * problem.stride[0], code.get(
            "add.s32", "r", row, -problem.pads[0]))
        x = code.get("mad.lo.s32", "r", columns, config.columns * problem.stride[1], code.get(
            "add.s32", "r", column, -problem.pads[1] - d.lead))
        byte = code.get("mad.lo.u32", "r", images, d.patch_pixel, byte)
        inside = code.get("setp.lt.u32", "p", number, d.vectors)
        outside_patch = code.get("not.pred", "p", inside)
        for value, limit in ((y, problem.height), (x, problem.width), (byte, d.pixel)):
            # a negative number is large if it is read as unsigned: one comparison tests both bounds
            inside = code.get("setp.lt.and.u32", "p", value, limit, inside)
        at = code.get("mad.wide.s32", "q", code.get(
            "mad.lo.s32", "r", y, problem.width, x), d.pixel, code.get(
            "cvt.u64.u32", "q", byte))
        first = self.block.group * problem.group_channels * self._channel_bytes
        at = code.get("add.s64", "q", at, first)
        source = code.get("add.s64", "q", at, code.get("ld.param.u64", "q", Address("x")))
        target = code.get("mad.lo.u32", "r", number, d.vector, self._memory)
        self._fill(target, inside, outside_patch)
        return _Copy(source, target, inside)

    @property
    def _channel_bytes(self) -> int:
        """Bytes of an input channel in memory."""
        return self.division.problem.height * self.division.problem.width * self.division.pixel

    def _fill(self, target: str, inside: str, outside_patch: str) -> None:
        """Emit the stores of zeros for inputs outside of the image.

        The zeros stay for all stages, because copies write only inputs inside of the image.
        """
        code, d = self.code, self.division
        beyond = code.label()
        code.jump(beyond, inside, uniform=False)
        code.jump(beyond, outside_patch, uniform=False)
        zero = code.get("mov.b32", "r", 0)
        words = d.vector // 4
        name = "st.shared.b32" if words == 1 else f"st.shared.v{words}.b32"
        for slot in range(min(len(self._chunks), d.buffers) * d.config.stage):
            code.emit(name, Address(target, slot * d.plane),
                      zero if words == 1 else (zero,) * words)
        code.place(beyond)

    def _window_of(self, item: str) -> str:
        """Emit code that computes where a work-item's window begins in shared memory.

        For work-items that compute no result, the address is the start of shared memory.
        """
        code, d = self.code, self.division
        pixel, lane = code.divided(item, d.lanes)
        row, column = code.divided(pixel, d.config.columns)
        down, right = d.problem.stride
        at = code.get("mad.lo.u32", "r", row, down * d.patch_columns * d.patch_pixel, self._memory)
        at = code.get("mad.lo.u32", "r", column, right * d.patch_pixel, at)
        at = code.get("mad.lo.u32", "r", lane, d.pair * d.itemsize, at)
        busy = code.get("setp.lt.u32", "p", item, d.items)
        begin = code.get("add.u32", "r", at, d.lead * d.patch_pixel)
        return code.get("selp.b32", "r", begin, self._memory, busy)

    def _walk(self) -> None:
        """Emit all stages.

        While a stage is computed, the next stages are copied. Between two barriers, prefetch warps
        run the code of a stage without reading its inputs, and the other warps compute the previous
        stage. Prefetch warps therefore copy their share of a stage's inputs one barrier earlier
        than the other warps do. Three buffers hold the two stages that are being copied and the
        stage that is read.
        """
        code, d = self.code, self.division
        behind = 1 if d.config.prefetch_warps else max(1, d.buffers - 1)
        for index in range(behind):
            self._load(index)
        for index, chunk in enumerate(self._chunks):
            code.emit("cp.async.wait_group", behind - 1)
            code.emit("bar.sync", 0)
            if d.config.prefetch_warps and index == 0:
                self._barrier(unless=self._is_prefetch)
            if d.buffers > 1:
                self._load(index + behind)
            self._make_room(chunk)
            self._compute(index, chunk)
        if d.config.prefetch_warps:
            if self._chunks:
                self._barrier(unless=f"!{self._is_prefetch}")
            code.emit("exit", guard=self._is_prefetch)

    def _barrier(self, unless: str) -> None:
        """Emit a barrier that work-items skip if a predicate is true."""
        beyond = self.code.label()
        self.code.jump(beyond, unless)
        self.code.emit("bar.sync", 0)
        self.code.place(beyond)

    def _load(self, index: int) -> None:
        """Emit the asynchronous copies of a stage's inputs to shared memory."""
        code, d = self.code, self.division
        for copy in self._copies if index < len(self._chunks) else ():
            chunk = self._chunks[index]
            away = (chunk[0] - copy.channel) * self._channel_bytes
            if away:
                copy.source = code.get("add.s64", "q", copy.source, away)
                copy.channel = chunk[0]
            beyond = code.label()
            code.jump(beyond, f"!{copy.inside}", uniform=False)
            for slot, channel in enumerate(chunk, index % d.buffers * d.config.stage):
                away = (channel - copy.channel) * self._channel_bytes
                if away >= _LARGEST_OFFSET:
                    copy.source = code.get("add.s64", "q", copy.source, away)
                    copy.channel, away = channel, 0
                code.emit("cp.async.cg.shared.global" if d.vector == 16
                          else "cp.async.ca.shared.global",
                          Address(copy.target, slot * d.plane), Address(copy.source, away),
                          d.vector)
            code.place(beyond)
        code.emit("cp.async.commit_group")

    def _compute(self, index: int, chunk: Sequence[int]) -> None:
        """Emit a stage's products.

        Each k_group, and each prefetch warp, runs one part of the stage's channels. Other warps run
        all parts. Without prefetch warps, warps with different staggered entries begin with
        different parts.
        """
        code, config = self.code, self.division.config
        count = config.k_groups if config.k_groups > 1 else config.staggered_entries
        first_slot = index % self.division.buffers * config.stage
        if count == 1:
            self._products(chunk, first_slot)
            return
        cuts = self._cuts(chunk, count)
        labels, end = [code.label() for _ in range(count)], code.label()
        code.dispatch(self._part, labels)
        for part, label in enumerate(labels):
            code.place(label)
            low, high = cuts[part], cuts[part + 1]
            self._products(chunk[low:high], first_slot + low)
            if config.k_groups > 1:
                code.jump(end)
            else:
                code.jump(end, code.get("setp.eq.u32", "p", self._end, (part + 1) % count))
        if config.k_groups == 1:
            code.jump(labels[0])
        code.place(end)

    def _cuts(self, chunk: Sequence[int], count: int) -> list[int]:
        """Return where to cut a stage's channels into parts of similar code length."""
        lengths = [sum(1 + len(products) for _, _, products in self.block.taps[c]) for c in chunk]
        ends = np.cumsum(lengths)
        targets = ends[-1] * np.arange(1, count) / count
        return [0, *(int(np.argmin(np.abs(ends - target))) + 1 for target in targets), len(chunk)]

    def _products(self, channels: Sequence[int], first_slot: int) -> None:
        """Emit loads and multiply-adds for input channels that lie in successive slots."""
        code, d = self.code, self.division
        counts = [0] * len(self._sums)
        for slot, channel in enumerate(channels, first_slot):
            taps = self.block.taps[channel]
            inputs = [self._input(slot, r, s) for r, s, _ in taps]
            for (_, _, products), value in zip(taps, inputs, strict=True):
                for b, bits in products:
                    if d.halves:
                        factor = code.get("mov.b32", "r", bits << 16 | bits)
                        code.emit("fma.rn.f16x2", self._sums[b], value, factor, self._sums[b])
                        counts[b] += 1
                        if self._overflows[b] and counts[b] == MOST_TERMS:
                            self._widen(b)
                            counts[b] = 0
                    else:
                        code.emit("fma.rn.f32", self._sums[b], value, Bits(bits), self._sums[b])
        for b, count in enumerate(counts):
            if d.halves and count and self._overflows[b]:
                self._widen(b)

    def _input(self, slot: int, row: int, column: int) -> str:
        """Emit the load of the input that a tap reads from a slot.

        Prefetch warps skip this load, because other warps may be copying to the slot.
        """
        d = self.division
        down, right = d.problem.dilation
        offset = slot * d.plane + (row * down * d.patch_columns + column * right) * d.patch_pixel
        kind = ("ld.shared.b32", "r") if d.halves else ("ld.shared.f32", "f")
        guard = f"!{self._is_prefetch}" if self._is_prefetch else ""
        return self.code.get(*kind, Address(self._window, offset), guard=guard)

    def _make_room(self, chunk: Sequence[int]) -> None:
        """Emit code before a stage that adds float16 sums to float32 sums where necessary.

        A channel's float16 sums are added if they would have more than MOST_TERMS terms after the
        stage. A channel that has more than MOST_TERMS terms in a single stage overflows: its sums
        are also added after every part of the stage, because warps run the parts in different
        orders.
        """
        self._overflows = [False] * len(self._sums)
        if not self.division.halves:
            return
        for b, count in enumerate(self.block.terms(chunk)):
            self._overflows[b] = count > MOST_TERMS
            if self._pending[b] and self._pending[b] + count > MOST_TERMS:
                self._widen(b)
                self._pending[b] = 0
            self._pending[b] += 0 if self._overflows[b] else count

    def _widen(self, b: int) -> None:
        """Emit code that adds a channel's float16 sums to its float32 sums.

        The code then sets the float16 sums (of two images) to 0.
        """
        added = unpacked(self.code, self._sums[b])
        if b not in self._wide:
            self._wide[b] = (self.code.register("f"), self.code.register("f"))
        for total, term in zip(self._wide[b], added, strict=True):
            self.code.emit("add.rn.f32", total, total, term)
        self.code.emit("mov.b32", self._sums[b], 0)

    def _values(self) -> list[tuple[str, ...]]:
        """Emit code that converts the sums to float32.

        Return the registers with the sums of each channel, one for each image.
        """
        if not self.division.halves:
            return [(register,) for register in self._sums]
        values = []
        for b, register in enumerate(self._sums):
            added = unpacked(self.code, register)
            values.append(tuple(self.code.get("add.rn.f32", "f", total, last) for total, last
                                in zip(self._wide[b], added, strict=True))
                          if b in self._wide else added)
        return values
