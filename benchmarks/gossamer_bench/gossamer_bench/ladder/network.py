"""A network as one rung of the ladder computes it on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.device.base import Argument, Buffer, Device, Kernel
from gossamer.device.source import KernelSource
from gossamer.errors import UnsupportedError
from gossamer.measure import measure
from gossamer.model.graph import StaticGraph
from gossamer.ops.launch import Launch, input_buffer, output_buffer, workspace_buffer
from gossamer_bench.ladder.layers import (
    Convolution,
    Mean,
    Product,
    PublishedLayer,
    Sum,
    published_layers,
)
from gossamer_bench.ladder.rungs import Rung

_HERE = Path(__file__).parent
_BLOCK = 256
"""Work-items of a work-group in rungs that do not tune this number."""
_BLOCKS = (32, 64, 128, 256, 512, 1024)
"""The numbers of work-items of a work-group that Rung.BLOCKS and the later rung try."""
_TUNING_REPEATS, _TUNING_SAMPLE_US = 3, 200.0
"""Number of samples of each block size, and the length of one sample in microseconds."""
_LARGEST = 2**31 - 1
"""The most values that a tensor may have, because the kernels count values by 32-bit integers."""
_PURPOSE = "a rung of the ladder"

BlockSizes = dict[tuple[object, ...], int]
"""The fastest block sizes measured so far, by kernel and the sizes of its tensors."""


@dataclass(frozen=True)
class _Stored:
    """A tensor in memory.

    shape: images, channels, rows and columns, without the border.
    border: number of rows or columns of zeros on each side of an image.
    """

    shape: tuple[int, ...]
    border: int

    @property
    def height(self) -> int:
        return self.shape[2] + 2 * self.border

    @property
    def width(self) -> int:
        return self.shape[3] + 2 * self.border

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1] * self.height * self.width


@dataclass(frozen=True)
class _Call:
    """A kernel with its arguments.

    items: number of work-items that the kernel needs.
    """

    kernel: Kernel
    items: int
    arguments: tuple[Argument | Any, ...]

    def launch(self, block: int) -> Launch:
        """Returns the launch with `block` work-items in a work-group."""
        return Launch(self.kernel, (-(-self.items // block),), (block,), self.arguments)

    @property
    def key(self) -> tuple[object, ...]:
        """The kernel and its sizes, on which the fastest block size depends."""
        return (self.kernel.source, *(argument for argument in self.arguments
                                      if isinstance(argument, int)))


@dataclass
class _Work:
    """The kernel calls that compute a layer.

    padded_size: number of values in the padded copy of the layer's input; 0 where the layer makes
    no padded copy.
    """

    inputs: tuple[str, ...]
    output: str
    calls: list[_Call]
    padded_size: int = 0
    launches: list[Launch] = field(default_factory=list)


class PublishedNetwork:
    """A network that one rung computes, with its weights and its input in a device's memory.

    Before Rung.BORDERS a layer that needs padding first copies its input into a larger tensor. From
    Rung.BORDERS on, each tensor is written with the border that its readers need. Before
    Rung.MEMORY each layer allocates its memory in every run, and all of it is freed at the run's
    end. From Rung.MEMORY on, memory is allocated once.

    static: network at one batch size.
    x: input of the network (N, C, H, W).
    dtype: dtype of weights, tensors and arithmetic: "float32" or "float64".
    blocks: block sizes measured so far; the network adds the block sizes that it measures.
    Raises UnsupportedError where the network has other layers than the published program, and
    CompileError where the device lacks the dtype.
    """

    def __init__(self, static: StaticGraph, x: np.ndarray, rung: Rung, dtype: str, device: Device,
                 blocks: BlockSizes | None = None) -> None:
        self._device, self._rung, self._dtype = device, rung, np.dtype(dtype)
        layers = published_layers(static)
        self._output = static.graph.outputs[0].name
        self._output_shape = static.shapes[self._output]
        source = static.graph.inputs[0].name
        self._stored = self._tensors(static, layers, source)
        self._works = [self._work(layer) for layer in layers]
        largest = max([tensor.size for tensor in self._stored.values()]
                      + [work.padded_size for work in self._works])
        if largest > _LARGEST:
            raise UnsupportedError(f"{static.graph.file}: a tensor has {largest} values, and a "
                                   f"rung of the ladder counts to {_LARGEST}; take a smaller batch")
        self._kept: dict[str, Buffer] = {source: self._upload(self._with_border(x, source))}
        self._kept_padded: dict[str, Buffer] = {}
        if rung >= Rung.MEMORY:
            for work in self._works:
                self._allocate(work, self._kept, self._kept_padded)
        self._result = self._kept.get(self._output)
        known: BlockSizes = {} if blocks is None else blocks
        for work in self._works:
            work.launches = [call.launch(self._block(work, call, known)) for call in work.calls]

    @property
    def kernels(self) -> int:
        """The number of kernel launches of a run."""
        return sum(len(work.launches) for work in self._works)

    @property
    def block_sizes(self) -> tuple[int, int]:
        """The smallest and the largest block size among the kernels."""
        sizes = {launch.work_group_size[0] for work in self._works for launch in work.launches}
        return min(sizes), max(sizes)

    def run(self, stream: Any = None) -> None:
        """Queues the network's layers one after another. In rungs before Rung.MEMORY, waits until
        the layers have ended."""
        tensors, padded = dict(self._kept), dict(self._kept_padded)
        for work in self._works:
            if self._rung < Rung.MEMORY:
                self._allocate(work, tensors, padded)
            self._launch(work, work.launches, tensors, padded, stream)
        self._result = tensors[self._output]
        if self._rung < Rung.MEMORY:
            self._device.synchronize(stream)

    def output(self) -> np.ndarray:
        """Returns the output of the last run."""
        assert self._result is not None
        array = np.empty(self._stored[self._output].size, self._dtype)
        self._device.read(self._result, array)
        return array.reshape(self._output_shape)

    def _tensors(self, static: StaticGraph, layers: Sequence[PublishedLayer],
                 source: str) -> dict[str, _Stored]:
        """Returns the tensors in memory by name, with the borders that their readers need."""
        borders: dict[str, int] = {}
        if self._rung >= Rung.BORDERS:
            for layer in layers:
                if isinstance(layer, Convolution):
                    name = layer.inputs[0]
                    borders[name] = max(borders.get(name, 0), *layer.problem.pads)
        names = [source, *(layer.output for layer in layers)]
        return {name: _Stored((*static.shapes[name], 1, 1)[:4], borders.get(name, 0))
                for name in names}

    def _with_border(self, x: np.ndarray, name: str) -> np.ndarray:
        """Returns the input with the zeros that the network's first layers need around it."""
        border = self._stored[name].border
        return np.pad(x.astype(self._dtype), ((0, 0), (0, 0), (border,) * 2, (border,) * 2))

    def _upload(self, array: np.ndarray) -> Buffer:
        return self._device.upload(np.ascontiguousarray(array, self._dtype), _PURPOSE)

    def _allocate(self, work: _Work, tensors: dict[str, Buffer],
                  padded: dict[str, Buffer]) -> None:
        """Allocates the memory of a layer's output, and of the padded copy of its input where the
        layer makes such a copy."""
        nbytes = self._dtype.itemsize
        if work.padded_size:
            padded[work.output] = self._device.empty(nbytes * work.padded_size, _PURPOSE)
        tensors[work.output] = self._device.empty(nbytes * self._stored[work.output].size,
                                                  _PURPOSE)

    def _launch(self, work: _Work, launches: Sequence[Launch], tensors: dict[str, Buffer],
                padded: dict[str, Buffer], stream: Any) -> None:
        for launch in launches:
            launch.run(self._device, [tensors[name] for name in work.inputs],
                       [tensors[work.output]], padded.get(work.output), stream)

    def _block(self, work: _Work, call: _Call, known: BlockSizes) -> int:
        """Returns the block size of a kernel. From Rung.BLOCKS on, this is the fastest of several
        block sizes."""
        most = self._device.limits.sure_work_group_size
        if self._rung < Rung.BLOCKS:
            return min(_BLOCK, most)
        if call.key not in known:
            sizes = [size for size in _BLOCKS if size <= most] or [most]
            works = [partial(self._launch, work, [call.launch(size)], self._kept,
                             self._kept_padded) for size in sizes]
            timings = measure(self._device, works, repeats=_TUNING_REPEATS,
                              sample_us=_TUNING_SAMPLE_US)
            medians = [timing.median_us for timing in timings]
            known[call.key] = sizes[medians.index(min(medians))]
        return known[call.key]

    def _kernel(self, name: str, file: str | None = None) -> Kernel:
        return self._device.compile(KernelSource.of(
            _HERE / f"{file or name}.cl", name,
            {"VALUE": "double" if self._dtype == np.float64 else "float"}))

    def _work(self, layer: PublishedLayer) -> _Work:
        """Returns the kernel calls that compute a layer in this rung."""
        y = self._stored[layer.output]
        sources = [self._stored[name] for name in layer.inputs]
        buffers = [input_buffer(index) for index in range(len(sources))]
        if isinstance(layer, Convolution):
            return self._convolution(layer, sources[0], y)
        if isinstance(layer, Sum):
            kernel = self._kernel("sum", "others")
            arguments = (*buffers, output_buffer(0), y.size, *y.shape[2:],
                         *(source.border for source in sources), y.border)
        elif isinstance(layer, Mean):
            kernel = self._kernel("mean", "others")
            arguments = (*buffers, output_buffer(0), y.size, *sources[0].shape[2:],
                         sources[0].border)
        else:
            assert isinstance(layer, Product)
            kernel = self._kernel("product", "others")
            arguments = (*buffers, self._upload(layer.weight), self._upload(layer.bias),
                         output_buffer(0), y.size, *layer.weight.shape)
        return _Work(layer.inputs, layer.output, [_Call(kernel, y.size, arguments)])

    def _convolution(self, layer: Convolution, x: _Stored, y: _Stored) -> _Work:
        p = layer.problem
        top, left = x.border - p.pads[0], x.border - p.pads[1]
        height, width = x.height, x.width
        calls: list[_Call] = []
        padded_size = 0
        source = input_buffer(0)
        if self._rung < Rung.BORDERS and any(p.pads):
            height, width = p.height + p.pads[0] + p.pads[2], p.width + p.pads[1] + p.pads[3]
            padded_size = p.batch * p.channels * height * width
            calls.append(_Call(self._kernel("pads"), padded_size, (
                source, workspace_buffer, padded_size, p.height, p.width, height, width,
                *p.pads[:2])))
            source, top, left = workspace_buffer, 0, 0
        start = (source, self._upload(layer.weight), self._upload(layer.bias), output_buffer(0))
        bounds = self._dtype.type(layer.low), self._dtype.type(layer.high)
        window = (p.channels, height, width, p.out_channels, p.out_height, p.out_width,
                  p.channels // p.groups, p.out_channels // p.groups, *p.kernel, *p.stride,
                  *p.dilation)
        name, items = "values", y.size
        sizes: tuple[int, ...] = (*window, top, left, y.border)
        if self._rung == Rung.PIXELS:
            name, items, sizes = "pixels", p.pixels, window
        elif self._rung >= Rung.POINTWISE and p.is_pointwise and p.groups == 1:
            name = "pointwise"
            sizes = (p.channels, p.out_channels, p.height, p.width, x.border, y.border)
        calls.append(_Call(self._kernel(name), items, (*start, items, *bounds, *sizes)))
        return _Work(layer.inputs, layer.output, calls, padded_size)
