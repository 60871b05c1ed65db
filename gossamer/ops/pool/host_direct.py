"""Max pooling on CPUs, by code that LLVM compiles.

Max pooling by ONNX Runtime is slow between pruned layers, because images between these layers are
not in the layout that ONNX Runtime prefers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gossamer.device.base import Buffer, Device
from gossamer.device.host import address_of
from gossamer.device.jobs import Function, Job
from gossamer.device.native import processor as native
from gossamer.device.native.processor import function
from gossamer.facts import REAL
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.generated import GeneratedCode
from gossamer.ops.host_threads import THREADS, thread_configs, workers
from gossamer.ops.packed import formats_for
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.weights import Weights
from gossamer.tensor import PACKED_DTYPES, TensorSpec

_TASKS = 4
"""Number of tasks per thread. With several tasks each, threads finish at about the same time."""


class HostDirectPool(GeneratedCode):
    """Max pooling by code generated for this CPU."""

    op = "pool"
    name = "host_direct"
    between_thin = True
    by_image = True

    def refused(self, problem: PoolProblem) -> str | None:
        if problem.kind != "max":
            return "computes maxima only"
        if problem.input.dtype != "float32":
            return f"computes float32 only, not {problem.input.dtype}"
        if 0 in problem.input.shape[2:]:
            return "the input has no pixels"
        if problem.dilation[0] > 1 or max(problem.pads[::2]) >= problem.kernel[0]:
            return "a window may contain no row of the input, or rows that are not adjacent"
        return None

    def variants(self, problem: PoolProblem, device: Device) -> Iterator[Variant]:
        sources, targets = [problem.input], [*problem.outputs]
        if problem.dilation[1] == 1 and max(problem.pads[1::2]) < problem.kernel[1]:
            known = problem.facts[0] if problem.facts else REAL
            packed = [each for each in formats_for(known) if each.layout == "packed64"]
            sources += [TensorSpec(problem.input.shape, format_) for format_ in packed]
            targets += [TensorSpec(targets[0].shape, format_) for format_ in packed]
        for threads in thread_configs():
            for source, target in zip(sources, targets, strict=True):
                yield Variant(threads, (source,), (target,))

    def prepare(self, weights: Weights, problem: PoolProblem, variant: Variant,
                device: Device) -> State:
        from gossamer.ops.pool.pooling import pooling, pooling_words, scratch_floats

        lanes, dilation = native.processor().lanes, problem.dilation[1]
        size, out = problem.input.shape[2:], problem.outputs[0].shape[2:]
        source = variant.inputs[0]
        if source.format.is_packed:
            code = function("pool", native.processor(), pooling_words, size, out, problem.kernel,
                            problem.stride, problem.pads[:2], PACKED_DTYPES[source.dtype].planes)
            return State(problem, variant, device, data=_Work(code, workers(variant[THREADS]), 0))
        code = function("pool", native.processor(), pooling, size, out, problem.kernel,
                               problem.stride, problem.pads[:2], dilation, lanes)
        floats = scratch_floats(size[1], out[1], problem.kernel[1], problem.stride[1],
                                problem.pads[1], dilation, lanes)
        return State(problem, variant, device, data=_Work(
            code, workers(variant[THREADS]), 4 * floats))

    def jobs(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
             workspace: Buffer | None, images: int | None = None) -> list[Job]:
        work: _Work = state.data
        spec = state.variant.outputs[0]
        if spec.size == 0:
            return []
        planes = (spec.shape[0] if images is None else images) * spec.stored_shape[1]
        return [Job(work.code, (address_of(inputs[0]), address_of(outputs[0])), planes,
                    max(planes // (_TASKS * work.threads), 1), work.scratch)]


class _Work(NamedTuple):
    """The data of a launch.

    code: the generated function.
    threads: number of threads among which the tasks are divided.
    scratch: bytes of scratch memory that each thread needs.
    """

    code: Function
    threads: int
    scratch: int
