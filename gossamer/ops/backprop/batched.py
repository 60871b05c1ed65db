"""Back-propagation in one launch, with a group of work-groups per network."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from gossamer.device.base import Device
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource
from gossamer.errors import UnsupportedError
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.backprop import batched_tiles, batched_warp_tiles
from gossamer.ops.backprop.batched_tiles import DIRECT_ROWS, Tile
from gossamer.ops.backprop.kernels import (
    LOSSES,
    ORDER,
    PARAMETERS,
    SAMPLE_WEIGHTS,
    SETTINGS,
    TARGETS,
    TRAINED,
    KernelBackprop,
    X,
    activation_macros,
    adam_macros,
    padded,
)
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.gpu import clusters_at_once
from gossamer.ops.launch import Launch, input_buffer, output_buffer, workspace_buffer
from gossamer.ops.weights import Weights
from gossamer.tensor import rounded_up

_SOURCE = Path(__file__).with_name("batched.cl")
_GROUPS = (1, 2, 4, 8, 16)
_THREADS = (64, 128, 256, 384, 512)
_LARGEST_GRID = 2**31 - 1
_MOST_PARTS = tuple((forward, gradient) for gradient in (0, 1, 2, 3, 4, 8, 16, 32)
                    for forward in (gradient, 1) if forward <= gradient)
"""Values of `_Memory.parts`. The first value needs the least memory. Of the values that fit, the
one with the fewest expected cycles is used."""
_EXCHANGE_CYCLES = 2000
"""Expected cycles that a layer of a micro-batch waits for the other work-groups of a group."""
_UPPER_GRADIENTS = 2048
"""Floats for the parts of the gradients of an upper layer that is divided by samples."""
_SMALL = 1024
"""Limit on the samples of an update times the units of the largest layer. Up to this limit, only
layer 0 is divided among work-groups. Each work-group computes the other layers for all samples,
with its own copy of their weights."""


class Batched(KernelBackprop):
    """Training in one launch, in which a group of work-groups trains each network.

    The inputs of each layer are divided among the work-groups of a group. Small upper layers are
    divided by samples, or not at all. Each work-group keeps the weights of its inputs in shared
    memory. A group of several work-groups is a cluster. If the sums of a batch do not fit, the
    gradients are accumulated over micro-batches. In TF32, tensor cores compute the products.
    """

    name = "batched"

    def supports(self, problem: BackpropProblem, device: Device) -> str | None:
        if (reason := super().supports(problem, device)) is not None:
            return reason
        most = max(_group_sizes(device.limits))
        if problem.networks * most > _LARGEST_GRID:
            return f"it supports at most {_LARGEST_GRID // most} networks"
        if not _layouts_of(problem, device, "fp32"):
            return ("the weights, sums and samples do not fit into the "
                    f"{device.limits.shared_bytes_opt_in} bytes of shared memory of each of at "
                    f"most {most} work-groups")
        return None

    def variants(self, problem: BackpropProblem, device: Device) -> Iterator[Variant]:
        for precision in ("fp32", "tf32"):
            for layout in _layouts_of(problem, device, precision):
                yield Variant((("groups", layout.groups), ("threads", layout.threads)),
                              problem.inputs, problem.outputs, precision,
                              workspace=problem.networks * layout.workspace)

    def prepare(self, weights: Weights, problem: BackpropProblem, variant: Variant,
                device: Device) -> State:
        if problem.outputs[0].size == 0:
            return State(problem, variant, device)
        layout = next((each for each in _layouts_of(problem, device, variant.precision) if (
            each.groups, each.threads) == (variant["groups"], variant["threads"])), None)
        if layout is None:
            raise UnsupportedError(f"{self.name}: {variant.config_text} does not fit {device.name}")
        kernel = device.compile(KernelSource.of(
            _SOURCE, "batched", layout.macros, dynamic_shared=True,
            architectures=("sm_90" if layout.groups > 1 else
                           "sm_80" if variant.precision == "tf32" else "sm_75", "sm_100")))
        numbers = (X, TARGETS, ORDER, SETTINGS, PARAMETERS,
                   *((SAMPLE_WEIGHTS,) if problem.weighted else ()))
        return State(problem, variant, device, [Launch(
            kernel, (layout.groups * problem.networks,), (layout.threads,),
            (*map(input_buffer, numbers), output_buffer(TRAINED), output_buffer(LOSSES),
             workspace_buffer, problem.samples), 4 * layout.floats)])


@dataclass(frozen=True)
class _Memory:
    """Choices of a layout that determine how much shared memory is used.

    parts: maximum number of parts into which each sum of a forward product is split, and the same
    number for the sums of a gradient. If the second number is 0, gradients stay in registers.
    samples: number of samples of a micro-batch. Gradients are accumulated over the micro-batches of
    an update.
    moments: whether Adam's moments, or the velocities of momentum, are in shared memory.
    gradients: whether the accumulated gradients are in shared memory.
    buffers: number of buffers for the inputs of layer 0.
    """

    parts: tuple[int, int]
    samples: int
    moments: bool
    gradients: bool
    buffers: int


class _Layout:
    """Division of a network among work-groups, and offsets in shared memory.

    groups: number of work-groups that train the network.
    threads: work-items per work-group.
    cycles: expected cycles of the matrix products of one update.
    floats: floats of shared memory per work-group.
    workspace: bytes of the workspace per network.
    """

    def __init__(self, problem: BackpropProblem, groups: int, threads: int, memory: _Memory,
                 precision: str) -> None:
        self.groups, self.threads, self._memory = groups, threads, memory
        self._problem, self._precision = problem, precision
        sizes, batch = problem.sizes, min(problem.batch, max(problem.samples, 1))
        self._layers = range(len(sizes) - 1)
        self._batch, self._micro_batches = batch, -(-batch // memory.samples)
        self._rows = rows = _rows(memory.samples)
        self._stride = [_odd_fours(units) for units in sizes[1:]]
        self._divide(batch)
        # a slice is contiguous: it holds the partial sums that one work-group adds up
        self._slice = [self._share[layer + 1] if layer + 1 < self._split else self._stride[layer]
                       for layer in self._layers]
        # if upper layers are computed by samples, a work-group has no others of these
        self._rows_of = [rounded_up(self._mine, 8) if self._by_samples and layer >= self._split
                         else rows for layer in self._layers]
        self._sums = [count * max(stride, rounded_up(units, part)) for count, units, stride, part in
                      zip(self._rows_of, sizes[1:], self._stride, self._slice, strict=True)]
        self._length = [_odd_fours(share) for share in self._share]
        self.cycles = 0.0
        self._macros: dict[str, object] = {}
        self._choose_tiles(sizes)
        self.floats = 0
        self._place_state()
        self._place()

    def _divide(self, batch: int) -> None:
        """Choose which layers are divided among the work-groups, and by what.

        The upper layers are not divided if they are small for a batch of this size, or if their
        weights are at most as many as a work-group has in layer 0.
        """
        groups, sizes, last = self.groups, self._problem.sizes, len(self._problem.sizes) - 1

        def shares(split: int) -> list[int]:
            return [padded(-(-(inputs + 1) // groups) if layer < split else inputs + 1)
                    for layer, inputs in enumerate(sizes[:-1])]

        state = [share * stride for share, stride in zip(shares(1), self._stride, strict=True)]
        is_small = batch * max(sizes[1:]) <= _SMALL
        is_undivided = is_small or (batch > DIRECT_ROWS and sum(state[1:]) <= state[0])
        self._split = 0 if groups == 1 else 1 if is_undivided else last
        self._by_samples = groups > 1 and (self._split == last or not is_small)
        self._mine = -(-self._rows // groups) if self._by_samples else self._rows
        self._share = shares(self._split)

    @property
    def macros(self) -> dict[str, object]:
        """The macros of batched.cl."""
        problem, memory, sizes = self._problem, self._memory, self._problem.sizes
        layers = list(self._layers)
        upper = [f"DO({layer}, {layer - 1})" for layer in layers[1:]]
        macros = {
            **self._macros,
            "ALL(DO)": " ".join(f"DO({layer})" for layer in layers),
            "UPPER(DO)": " ".join(upper), "LOWER(DO)": " ".join(reversed(upper)),
            "LAYERS": len(layers), "SPLIT": self._split, "THREADS": self.threads,
            "CLUSTER": self.groups, "BATCH": self._batch, "MICRO_BATCH": memory.samples,
            "MICRO_BATCHES": self._micro_batches, "ROWS": self._rows, "MINE": self._mine,
            "BY_SAMPLES": int(self._by_samples), "OUTPUTS": sizes[-1],
            "OUTPUT_STRIDE": self._stride[-1], "OUTPUT_ROWS": self._rows_of[-1],
            "OUTPUT_ERROR_AT": self._macros[f"D_AT_{layers[-1]}"],
            "TF32": int(self._precision == "tf32"), "HALVES": 0,
            "WEIGHTED": int(problem.weighted), "COUNT": problem.weight_count,
            "PARAMETERS": problem.parameter_count, "BUFFERS": memory.buffers,
            "WIDE": int(sizes[0] % 4 == 0), "FLOATS": self.floats,
            **activation_macros(problem), **adam_macros()}
        parameter = at = 0
        for layer, (units, inputs) in enumerate(problem.layer_shapes):
            macros.update({
                f"INPUTS_{layer}": inputs, f"UNITS_{layer}": units,
                f"SHARE_{layer}": self._share[layer], f"LENGTH_{layer}": self._length[layer],
                f"STRIDE_{layer}": self._stride[layer], f"GLOBAL_{layer}": parameter,
                f"SLICE_{layer}": self._slice[layer], f"SUMS_{layer}": self._sums[layer],
                f"ROWS_{layer}": self._rows_of[layer], f"W_AT_{layer}": at,
                f"TAKE_SUMS_{layer}": (f"TAKE_OUTPUTS({layer})" if layer == layers[-1] else
                                       f"TAKE_HIDDEN({layer}, {layer + 1})")})
            parameter += units * (inputs + 1)
            at += self._share[layer] * self._stride[layer]
        return macros

    def _choose_tiles(self, sizes: tuple[int, ...]) -> None:
        memory = self._memory
        tiles = batched_warp_tiles if self._precision == "tf32" else batched_tiles
        self._forward: list[Tile] = []
        self._gradient: list[Tile] = []
        for layer in self._layers:
            units, inputs, rows = sizes[layer + 1], self._share[layer], self._rows_of[layer]
            forward = tiles.forward_tile(rows, units, inputs, memory.parts[0], self.threads)
            gradient_parts = (memory.parts[1] if rows == self._rows else
                              max(1, _UPPER_GRADIENTS // (inputs * self._stride[layer])))
            gradient = tiles.gradient_tile(inputs, units, rows, gradient_parts, self.threads)
            backward = tiles.backward_tile(rows, inputs, units, self.threads)
            self._forward.append(forward)
            self._gradient.append(gradient)
            self.cycles += self._micro_batches * (forward.cycles + gradient.cycles)
            self.cycles += self._micro_batches * backward.cycles if layer else 0.0
            self.cycles += self._micro_batches * _EXCHANGE_CYCLES if self.groups > 1 else 0.0
            self._macros.update({f"FORWARD_{layer}": forward.text,
                                 f"GRADIENT_{layer}": gradient.text,
                                 f"BACKWARD_{layer}": f"{backward.rows}, {backward.columns}"})

    def _place_state(self) -> None:
        """Reserve memory for weights, moments and accumulated gradients.

        Moments and gradients are in shared memory or in the workspace.
        """
        problem, memory = self._problem, self._memory
        state = sum(share * stride for share, stride in
                    zip(self._share, self._stride, strict=True))
        moments = 2 if problem.adam else int(problem.velocity)
        gradients = int(self._micro_batches > 1)
        shared = moments * memory.moments + gradients * memory.gradients
        own = (moments + gradients - shared) * state
        self.workspace = 4 * self.groups * own
        self._macros.update({
            "STATE": state, "MOMENTS": moments, "MOMENTS_SHARED": int(memory.moments),
            "GRADIENTS_SHARED": int(memory.gradients), "OWN_WORKSPACE": own,
            # gradients come after moments
            "GRADIENTS_AT": state * (shared if memory.gradients else moments)})
        self._take((1 + shared) * state)

    def _place(self) -> None:
        """Reserve shared memory for everything except weights and moments."""
        memory, rows, mine, last = self._memory, self._rows, self._mine, self._layers[-1]
        problem, macros, by_samples = self._problem, self._macros, self._by_samples
        outputs = problem.sizes[-1]
        macros["PARITIES"] = parities = 2 if self.groups > 1 and not by_samples else 1
        macros["X_AT"] = self._take(memory.buffers * rows * self._length[0])
        macros["T_AT"] = self._take(memory.buffers * mine * outputs)
        macros["V_AT"] = self._take(memory.buffers * mine * problem.weighted)
        macros["ROW_AT"] = self._take(3 * memory.samples)
        macros["Z_AT"] = self._take(mine * self._stride[-1])
        macros["STATISTIC_AT"] = self._take(3 * mine)
        macros["FACTOR_AT"] = self._take(32 * problem.adam)
        macros["O_AT"] = self._take(mine * self._stride[-1] * by_samples)
        macros["S_AT"] = self._take(max(
            (tile.parts * sums if tile.parts > 1 else 0
             for tile, sums in zip(self._forward, self._sums, strict=True)), default=0))
        for layer in self._layers:
            stride, split = self._stride[layer], layer < self._split
            gradient = self._gradient[layer]
            sums, count = self._sums[layer], self._rows_of[layer]
            errors = max(sums, gradient.parts * self._share[layer] * stride
                         if gradient.parts > 0 else 0)
            macros[f"A_AT_{layer}"] = (self._take(count * self._length[layer]) if layer
                                       else macros["X_AT"])
            macros[f"E_AT_{layer}"] = self._take(
                0 if layer == 0 else rows * self._share[layer] if split else
                count * self._stride[0] if by_samples and layer == self._split else 0)
            # errors overwrite the sums only if nothing reads the sums after errors are computed
            is_shared = by_samples or (layer < last and not split)
            if is_shared:
                macros[f"P_AT_{layer}"] = macros[f"D_AT_{layer}"] = self._take(errors)
                # gradients for other work-groups overwrite errors that were all read before
                overwrites = split or not by_samples or gradient.parts > 0
                macros[f"G_AT_{layer}"] = (macros[f"D_AT_{layer}"] if overwrites else
                                           self._take(self._share[layer] * stride))
            else:
                macros[f"P_AT_{layer}"] = self._take(sums * (parities if split else 1))
                macros[f"D_AT_{layer}"] = macros[f"G_AT_{layer}"] = self._take(errors)

    def fits(self, limits: Limits) -> bool:
        """Return whether the shared memory of a work-group holds the layout."""
        return 4 * self.floats <= limits.shared_bytes_opt_in

    def _take(self, floats: int) -> int:
        """Reserve floats and return their offset, a multiple of four."""
        start = self.floats
        self.floats += padded(floats)
        return start


def _odd_fours(floats: int) -> int:
    """Round a number up to an odd multiple of four."""
    return padded(floats) + (4 if padded(floats) % 8 == 0 else 0)


def _group_sizes(limits: Limits) -> list[int]:
    """Return the numbers of work-groups per group that the device allows."""
    return [groups for groups in _GROUPS if groups <= max(1, limits.cluster)]


def _layouts_of(problem: BackpropProblem, device: Device, precision: str) -> list[_Layout]:
    """Return the layouts that fit the device, in increasing order of expected times.

    In TF32, there are no layouts for updates of at most DIRECT_ROWS samples, or for devices without
    tensor cores.
    """
    batch = min(problem.batch, max(problem.samples, 1))
    if precision == "tf32" and (batch <= DIRECT_ROWS or not device.limits.mma):
        return []
    layouts = _layouts(BackpropProblem(
        problem.sizes, batch, batch, problem.activation, problem.loss, batch, problem.velocity,
        adam=problem.adam, output=problem.output, weighted=problem.weighted), device.limits,
        precision)
    return sorted(layouts, key=lambda layout: _expected_time(layout, problem, device.limits))


@lru_cache(maxsize=1024)
def _layouts(update: BackpropProblem, limits: Limits, precision: str) -> list[_Layout]:
    """Return the layouts for networks that are trained by updates of this batch size.

    The layouts do not depend on the numbers of samples and networks. For each number of work-groups
    and of work-items, the layout with the fewest cycles is returned.
    """
    best: list[_Layout] = []
    for groups in _group_sizes(limits):
        if (memory := _memory(update, groups, limits)) is None:
            continue
        for threads in _THREADS:
            layouts = [_Layout(update, groups, threads, replace(memory, parts=parts), precision)
                       for parts in _MOST_PARTS if threads <= limits.work_group_size]
            best += sorted((layout for layout in layouts if layout.fits(limits)),
                           key=lambda layout: layout.cycles)[:1]
    return best


def _expected_time(layout: _Layout, problem: BackpropProblem, limits: Limits) -> float:
    """Return the expected time of an update of all networks, as cycles to compare layouts by.

    Fewer warps hide less latency, so the cycles of a layout are multiplied by 1 + 32 / threads.
    """
    at_once = max(1, clusters_at_once(layout.groups, limits))
    return -(-problem.networks // at_once) * layout.cycles * (1 + 32 / layout.threads)


def _memory(problem: BackpropProblem, groups: int, limits: Limits) -> _Memory | None:
    """Return the first choices of memory that fit; None if none fit.

    Few micro-batches, moments and gradients in shared memory, and two buffers come first. `parts`
    has the value that needs the least memory, for which work-items and precision hardly matter.
    """
    least, sizes = _MOST_PARTS[0], _micro_batches(problem.batch)

    def fits(samples: int, moments: bool = False, gradients: bool = False,
             buffers: int = 1) -> bool:
        memory = _Memory(least, samples, moments, gradients, buffers)
        return _Layout(problem, groups, _THREADS[-1], memory, "fp32").fits(limits)

    # the defaults of fits() need the least memory
    first = bisect_left(sizes, True, key=fits)
    return next((_Memory(least, samples, moments, gradients, buffers)
                 for samples in sizes[first:first + 1]
                 for moments, gradients in ((True, True), (False, True), (False, False))
                 for buffers in (2, 1) if fits(samples, moments, gradients, buffers)), None)


def _micro_batches(batch: int) -> list[int]:
    """Return the possible numbers of samples of a micro-batch, largest first.

    The first number is that of the whole batch. The others are multiples of the rows of a tile.
    """
    rows = _rows(batch)
    return [batch, *sorted({rounded_up(-(-batch // count), 8) for count in range(2, rows // 8 + 1)},
                           reverse=True)]


def _rows(samples: int) -> int:
    """Return the rows of shared memory for the samples of a micro-batch."""
    return rounded_up(samples, 8) if samples > DIRECT_ROWS else samples
