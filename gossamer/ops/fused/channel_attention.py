"""Squeeze-and-excite layers in one kernel.

The algorithm channel_attention runs on NVIDIA GPUs. A cluster of work-groups computes each image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gossamer.device.base import Device
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.epilogue import channel_vector, epilogue_macros
from gossamer.ops.fused.algorithm import FusionAlgorithm
from gossamer.ops.fused.problem import (
    ENTRY,
    PARTS,
    FusionProblem,
    SqueezeExciteLayer,
    layer_within,
)
from gossamer.ops.gpu import BEGIN, COPIED, LaunchWork
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import cannot_compile, layout_variants
from gossamer.ops.weights import Weights
from gossamer.tensor import rounded_up

_SOURCE = Path(__file__).with_name("channel_attention.cu")
_MULTIPLE = 8
"""The number of channels must be a multiple of this number, so that no 16-byte word spans two
pixels."""
_PRECISIONS = ("fp32", "fp16")
_WARPS = (8, 16)
_SURE_CLUSTER = 8
"""The largest cluster size, in work-groups, that every device with clusters supports."""
_CLUSTERS = 4
"""Maximum number of cluster sizes among the candidates."""
_MOST_IMAGES = 65535
"""Maximum number of work-groups of a grid along y."""
_CLUSTER_CYCLES = 1000.0
"""Cost of a cluster's barriers, in cycles."""


@dataclass(frozen=True)
class _Division:
    """The division of an image among the work-groups of a cluster.

    layer: the squeeze-and-excite layer.
    pixels: number of pixels of an image.
    width: number of channels in a 16-byte word.
    cluster: number of work-groups per image.
    warps: number of warps per work-group.
    most_shared: maximum bytes of shared memory per work-group.
    """

    layer: SqueezeExciteLayer
    pixels: int
    width: int
    cluster: int
    warps: int
    most_shared: int

    @property
    def words(self) -> int:
        """Number of 16-byte words per pixel."""
        return self.layer.channels // self.width

    @property
    def slice_words(self) -> int:
        """Number of 16-byte words of each pixel that a work-group computes."""
        return -(-self.words // self.cluster)

    @property
    def slice(self) -> int:
        """Number of channels per work-group."""
        return self.slice_words * self.width

    @property
    def squeezed_row(self) -> int:
        """Number of weights of the squeezing convolution per channel, a multiple of four."""
        return rounded_up(self.layer.squeezed, 4)

    @property
    def reads(self) -> int:
        """Maximum number of 16-byte words of the image that a work-item reads."""
        return -(-self.pixels // (32 * self.warps // self.slice_words))

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights and channel operands per work-group."""
        matrices = (self.squeezed_row + self.layer.squeezed) * self.slice_words * 16
        return matrices + 4 * sum(len(names) * size for names, size in self.operands)

    @property
    def operands(self) -> list[tuple[list[str], int]]:
        """The channel operands of the squeezing convolution, and those of the exciting convolution.

        Each element has the operands' names in the weights, and the number of floats per
        work-group and operand.
        """
        return [([f"{part}.operand{index}" for index in range(len(convolution.epilogue.operands))],
                 size) for part, convolution, size in (
                     (1, self.layer.squeeze, self.squeezed_row),
                     (2, self.layer.excite, self.slice))]

    @property
    def floats(self) -> int:
        """Number of floats in shared memory, a multiple of four.

        The floats hold sums, partial sums of columns and of other work-groups, gates, a barrier and
        the results of the squeezing convolution.
        """
        items = 32 * self.warps
        partial = max(_partial_sums(items, columns) for columns in (self.slice, self.squeezed_row))
        count = (items * self.width + partial + self.cluster * self.squeezed_row + self.slice + 4
                 + self.layer.squeezed)
        return rounded_up(count, 4)

    @property
    def is_held(self) -> bool:
        """Whether a work-group's slice of an image fits shared memory, and stays there."""
        return self._bytes(True) <= self.most_shared

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory per work-group."""
        return self._bytes(self.is_held)

    def _bytes(self, held: bool) -> int:
        return self.weight_bytes + 4 * self.floats + (
            16 * self.pixels * self.slice_words if held else 0)

    @property
    def fits(self) -> bool:
        """Whether a work-group can compute its slice of an image.

        The work-group needs one work-item for each word of its slice of a pixel, and shared memory
        for its weights and sums.
        """
        return self.slice_words <= 32 * self.warps and self.shared_bytes <= self.most_shared

    def expected_us(self, batch: int, limits: Limits) -> float:
        """Return the expected time of a batch in microseconds."""
        read = 16 * self.pixels * self.slice_words * (2 if self.is_held else 3)
        return LaunchWork(batch * self.cluster, 1, busy=read / COPIED, waited=0.0,
                          begin=BEGIN + _CLUSTER_CYCLES * (self.cluster > 1)).expected_us(limits)


class ChannelAttention(FusionAlgorithm):
    """A squeeze-and-excite layer as one kernel.

    Each work-group of a cluster computes a slice of the channels of an image.
    """

    name = "channel_attention"
    patterns = tuple((mean, "conv2d", "conv2d", "elementwise") for mean in ("reduce", "pool"))

    def recognises(self, problem: FusionProblem) -> bool:
        return _layer_of(problem) is not None

    def supports(self, problem: FusionProblem, device: Device) -> str | None:
        if not device.limits.mma:
            return f"{device.name} is not an NVIDIA GPU of sm_80 or newer"
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        layer = _layer_of(problem)
        if layer is None:
            return "the layers are not a squeeze-and-excite layer"
        if problem.exits != ((3, 0),):
            return "a value inside the layer is read elsewhere"
        if layer.channels % _MULTIPLE:
            return f"needs a multiple of {_MULTIPLE} channels, not {layer.channels}"
        batch, _, height, width = problem.inputs[0].shape
        if batch > _MOST_IMAGES:
            return f"supports at most {_MOST_IMAGES} images"
        if not layer.channels * height * width:
            return "has empty images"
        if not any(_divisions(problem, precision, device) for precision in ("fp16", "fp32")):
            return (f"{layer.channels} channels and {layer.squeezed} squeezed channels "
                    "do not fit the shared memory of a cluster")
        return None

    def variants(self, problem: FusionProblem, device: Device) -> Iterator[Variant]:
        return self.variants_in(problem, device, _PRECISIONS)

    def variants_in(self, problem: FusionProblem, device: Device,
                    precisions: Sequence[str]) -> Iterator[Variant]:
        orders = {precision: [(division.cluster, division.warps) for division in
                              _divisions(problem, precision, device)]
                  for precision in _PRECISIONS if precision in precisions}
        # The best config of fp16 comes first, then the best config of fp32, then the others. Each
        # config is yielded in every precision for which it is a candidate.
        listed = list(reversed(orders.values()))
        first = [config for order in listed for config in order[:1]]
        others = [config for order in listed for config in order]
        for cluster, warps in dict.fromkeys([*first, *others]):
            (plain,) = layout_variants(problem, ("NHWC",), (("cluster", cluster), ("warps", warps)))
            for precision, order in orders.items():
                if (cluster, warps) in order:
                    yield plain.as_fp16 if precision == "fp16" else plain

    def expected_us(self, problem: FusionProblem, variant: Variant, device: Device) -> float:
        division = _division(problem, variant.precision, variant["cluster"], variant["warps"],
                             device)
        return division.expected_us(problem.inputs[0].shape[0], device.limits)

    def prepare(self, weights: Weights, problem: FusionProblem, variant: Variant,
                device: Device) -> State:
        if not problem.outputs[0].size:
            return State(problem, variant, device)
        division = _division(problem, variant.precision, variant["cluster"], variant["warps"],
                             device)
        layer, halves = division.layer, variant.precision == "fp16"
        kernel = device.compile(KernelSource.of(
            _SOURCE, "channel_attention", _macros(division, halves),
            architectures=("sm_90" if division.cluster > 1 else "sm_80", "sm_100"),
            dynamic_shared=True))
        packed = weights.packed(
            f"squeeze and excite of {division.cluster}, {variant.precision}",
            lambda arrays: _pack(division, arrays, np.float16 if halves else np.float32))
        tensors = [input_buffer(number) for _, number in layer.tensors]
        return State(problem, variant, device, [Launch(
            kernel, (division.cluster, problem.inputs[0].shape[0]), (32 * division.warps, 1, 1),
            (input_buffer(0), packed, output_buffer(0), division.pixels, 1 / division.pixels,
             *tensors), division.shared_bytes)])


def _layer_of(problem: FusionProblem) -> SqueezeExciteLayer | None:
    """Return a fusion as a squeeze-and-excite layer; None if it is not one."""
    if len(problem.parts) != PARTS:
        return None
    layer = layer_within(problem, 0, ENTRY)
    if layer is None or not (layer.squeeze.is_pointwise and layer.excite.is_pointwise):
        return None
    return layer if all(part < 0 for part, _ in layer.tensors) else None


def _division(problem: FusionProblem, precision: str, cluster: int, warps: int,
              device: Device) -> _Division:
    layer = _layer_of(problem)
    assert layer is not None
    _, _, height, width = problem.inputs[0].shape
    return _Division(layer, height * width, 8 if precision == "fp16" else 4, cluster, warps,
                     device.limits.shared_bytes_opt_in)


def _divisions(problem: FusionProblem, precision: str, device: Device) -> list[_Division]:
    """Return the candidate divisions.

    The first division has the least expected time among those with a cluster size of at most
    _SURE_CLUSTER. The others follow in increasing order of expected time. If several cluster sizes
    result in the same number of words per work-group, only the smallest size is a candidate.
    """
    batch, limits = problem.inputs[0].shape[0], device.limits
    alone = _division(problem, precision, 1, min(_WARPS), device)
    found: dict[int, list[_Division]] = {}
    for cluster in range(1, max(1, limits.cluster) + 1):
        smallest = -(-alone.words // replace(alone, cluster=cluster).slice_words)
        divisions = [replace(alone, cluster=smallest, warps=warps) for warps in _WARPS]
        fitting = [division for division in divisions if division.fits]
        if fitting:
            found.setdefault(smallest, fitting)
    order = sorted(found, key=lambda cluster: found[cluster][0].expected_us(batch, limits))
    sure = [cluster for cluster in order if cluster <= _SURE_CLUSTER][:1]
    return [division for cluster in dict.fromkeys([*sure, *order[:_CLUSTERS]])
            for division in found[cluster]]


def _partial_sums(items: int, columns: int) -> int:
    """Return how many partial sums a work-group computes for a number of columns.

    This is the number of ColumnSums in column_sums.h.
    """
    return columns * min(max(items // (columns // 4), 1), 8)


def _macros(division: _Division, halves: bool) -> dict[str, object]:
    layer = division.layer
    scale = {name: text for name, text in epilogue_macros(
        layer.scale, tensor_dtype="float16" if halves else "float32", prefix="SCALE_").items()
        if "PARAMETERS" not in name}
    tensors = "".join(f", const REAL *scale_operand{number}"
                      for number in range(1, len(layer.scale.operands)))
    declared, first = [], 0
    for prefix, (names, size) in zip(("squeeze", "excite"), division.operands, strict=True):
        declared.append(" ".join(
            f"const float *{prefix}_operand{index} = constants + {first + index * size};"
            for index in range(len(names))))
        first += len(names) * size
    macros = {
        "HALVES": int(halves), "WIDTH": division.width, "WORDS": division.words,
        "CHANNELS": layer.channels, "SQUEEZED": layer.squeezed,
        "SLICE_WORDS": division.slice_words, "CLUSTER": division.cluster,
        "WARPS": division.warps, "READS": division.reads,
        "HELD": int(division.is_held), "HELD_AT": division.floats,
        "SCALE_PARAMETERS": tensors, **scale,
        **epilogue_macros(layer.squeeze.epilogue, prefix="SQUEEZE_"),
        **epilogue_macros(layer.excite.epilogue, prefix="EXCITE_"),
        "CONSTANT_WORDS": first // 4, "SQUEEZE_OPERANDS": declared[0],
        "EXCITE_OPERANDS": declared[1]}
    return {name: value for name, value in macros.items()
            if name not in ("SQUEEZE_EPILOGUE_PARAMETERS", "EXCITE_EPILOGUE_PARAMETERS")}


def _pack(division: _Division, arrays: Mapping[str, np.ndarray], dtype: type) -> np.ndarray:
    """Return the weights of both convolutions in the order in which the kernel reads them.

    A row of the array has the bytes of a work-group: the weights of the squeezing convolution as
    (channels, squeezed channels), those of the exciting convolution as (squeezed channels,
    channels), and the channel operands in float32. All are padded with zeros.
    """
    layer, cluster, size = division.layer, division.cluster, division.slice
    squeeze = np.zeros((cluster * size, division.squeezed_row), np.float32)
    squeeze[:layer.channels, :layer.squeezed] = (
        arrays["1.weight"].reshape(layer.squeezed, layer.channels).T)
    excite = np.zeros((layer.squeezed, cluster, size), np.float32)
    excite.reshape(layer.squeezed, -1)[:, :layer.channels] = (
        arrays["2.weight"].reshape(layer.channels, layer.squeezed).T)
    with np.errstate(over="ignore"):
        parts: list[np.ndarray] = [
            squeeze.reshape(cluster, -1).astype(dtype),
            excite.swapaxes(0, 1).reshape(cluster, -1).astype(dtype)]
    (of_squeeze, row), (of_excite, _) = division.operands
    for name in of_squeeze:
        vector = channel_vector(name, layer.squeezed, row)(arrays)
        parts.append(np.tile(vector, (cluster, 1)))
    for name in of_excite:
        vector = channel_vector(name, layer.channels, cluster * size)(arrays)
        parts.append(vector.reshape(cluster, size))
    return np.concatenate([part.view(np.uint8) for part in parts], 1)
