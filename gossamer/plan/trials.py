"""The candidates of one layer on one device: checked against the reference, then timed."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.host import processors
from gossamer.errors import OutOfMemoryError, first_line
from gossamer.measure import Crowd, Task, prepared, sampled
from gossamer.ops import OPS
from gossamer.ops.algorithm import Algorithm, State, Variant, Weights
from gossamer.plan.building import Build, build
from gossamer.plan.program import Layer
from gossamer.plan.tuning_cache import Measured
from gossamer.tensor import TensorSpec, from_memory, to_memory

LARGEST_ERROR = {"fp32": 1e-5, "tf32": 2e-3, "fp16": 2e-3}
"""Normalised error of an image beyond which a candidate of a precision computes wrong numbers."""

WRONG = "wrong numbers"
"""How the failure of a candidate begins that may be right with other weights."""

_CHECKED_IMAGES = 3
_SAMPLE_US, _BUDGET_US = 200.0, 5e5
_COLD_SAMPLES = 5
_HOPELESS = 4.0
"""Times the fastest's, beyond which no layout that a candidate saves others makes up for it."""
_GUARD = 0xFF

Work = Callable[[Any], None]

_QUIET = np.errstate(all="ignore")
"""Weights may be huge, or not finite: the comparison tells."""


@dataclass
class _Ready:
    """A candidate that computes the right numbers."""

    index: int
    work: Work
    error: float
    build: Build


class Trials:
    """The candidates of a layer over the same inputs and the layer's own constants."""

    def __init__(self, layer: Layer, place: Device, crowd: Crowd | None = None) -> None:
        assert layer.problem is not None
        self.problem = layer.problem
        self._crowd = Crowd() if crowd is None else crowd
        self.place = place
        self.digest = digest(layer.weights)
        self._weights = Weights(layer.weights, place, layer.name)
        self._arrays = self.problem.example_inputs(np.random.default_rng(0))
        self._images, self._expected = self._reference(layer.weights)
        self._sources: dict[TensorSpec, dict[int, Buffer]] = {}
        self._targets: dict[tuple[int, TensorSpec], tuple[Buffer, Buffer]] = {}
        self._workspace: Buffer | None = None
        self._other: tuple[Buffer, Buffer] | None = None

    @_QUIET
    def run(self, pairs: Sequence[tuple[Algorithm, Variant]],
            samples: int) -> tuple[list[Measured], set[int]]:
        """What came of each pair; and the indices of those whose failure, out of memory, may not
        come again."""
        results: dict[int, Measured] = {}
        transient: set[int] = set()

        def fail(index: int, failure: Exception) -> None:
            results[index] = self._failed(*pairs[index], f"does not run: {first_line(failure)}")
            if isinstance(failure, (OutOfMemoryError, MemoryError)):
                transient.add(index)

        self._share_workspace([variant for _, variant in pairs])
        ready: list[_Ready] = []
        tasks = []
        for index, ((algorithm, variant), built) in enumerate(
                zip(pairs, self._built(pairs), strict=True)):
            try:
                state, made = built()
                work, error = self._checked(algorithm, variant, state)
                if not error <= LARGEST_ERROR[variant.precision]:
                    results[index] = self._failed(algorithm, variant, _wrong(error))
                    continue
                tasks.append(prepared(Task(self.place, work), _SAMPLE_US))
                ready.append(_Ready(index, work, error, made))
            except Exception as failure:  # a candidate may fail in any way; it is named and left
                fail(index, failure)
        with self._crowd.watched(self.place):
            timings = sampled(tasks, samples, _BUDGET_US, _HOPELESS)
        for each, timing in zip(ready, timings, strict=True):
            try:
                if isinstance(timing, Exception):
                    raise timing
                found = Measured.of(*pairs[each.index], timing, error=each.error,
                                    cold_us=self._cold(each.work), weights=self.digest,
                                    build=each.build)
                # of what was asked for: a slow candidate stops earlier
                results[each.index] = replace(found, samples=samples)
            except Exception as failure:
                fail(each.index, failure)
        return [results[index] for index in range(len(pairs))], transient

    @_QUIET
    def check(self, algorithm: Algorithm, variant: Variant) -> str | None:
        """Why a candidate may not be used with the layer's constants; None where it may."""
        try:
            self._share_workspace([variant])
            state, _ = build(algorithm, self._weights, self.problem, variant, self.place)
            _, error = self._checked(algorithm, variant, state)
        except Exception as failure:
            return f"does not run: {first_line(failure)}"
        return None if error <= LARGEST_ERROR[variant.precision] else _wrong(error)

    def _failed(self, algorithm: Algorithm, variant: Variant, failure: str) -> Measured:
        return Measured.of(algorithm, variant, failure=failure, weights=self.digest)

    @_QUIET
    def _reference(self, weights: Mapping[str, np.ndarray]
                   ) -> tuple[list[int] | None, list[np.ndarray]]:
        """Which images are compared, the first and the last among them, and the reference's
        outputs for them; None for all, where images are not apart."""
        few = self.problem.first_images(_CHECKED_IMAGES)
        if few is self.problem or few == self.problem:
            return None, OPS[few.op].reference(few, self._arrays, weights)
        count, all_ = few.outputs[0].shape[0], self.problem.outputs[0].shape[0]
        images = [round(index * (all_ - 1) / max(count - 1, 1)) for index in range(count)]
        arrays = [array[images] if array.shape != spec.shape else array
                  for array, spec in zip(self._arrays, few.inputs, strict=True)]
        return images, OPS[few.op].reference(few, arrays, weights)

    def _share_workspace(self, variants: Sequence[Variant]) -> None:
        """Memory for as many candidates as there is room for; they run one after another."""
        for nbytes in sorted({variant.workspace for variant in variants}, reverse=True):
            if self._workspace is not None and self._workspace.nbytes >= nbytes:
                return
            if nbytes:
                try:
                    self._workspace = self.place.empty(nbytes, "a candidate's workspace")
                except OutOfMemoryError:
                    continue
                return

    def _workspace_of(self, variant: Variant) -> Buffer | None:
        if not variant.workspace:
            return None
        if self._workspace is None or self._workspace.nbytes < variant.workspace:
            raise OutOfMemoryError(f"{self.place.name} has no room for {variant.workspace} bytes "
                                   "(a candidate's workspace)")
        return self._workspace

    def _built(self, pairs: Sequence[tuple[Algorithm, Variant]]
               ) -> list[Callable[[], tuple[State, Build]]]:
        """For each pair what makes it ready, or raises what came of that: on devices that build
        side by side our own have been built when this returns, on as many processors as it
        may use. Vendors' libraries build when they are asked."""
        def ready(pair: tuple[Algorithm, Variant]) -> tuple[State, Build]:
            algorithm, variant = pair
            return build(algorithm, self._weights, self.problem, variant, self.place)

        if not self.place.builds_side_by_side:
            return [partial(ready, pair) for pair in pairs]
        pool = ThreadPoolExecutor(processors())
        try:
            ahead = {index: pool.submit(_QUIET(ready), pair) for index, pair in enumerate(pairs)
                     if not pair[0].vendor}
            wait(ahead.values())
        finally:
            # not for builds that an interrupt made vain
            pool.shutdown(wait=False, cancel_futures=True)
        return [ahead[index].result if index in ahead else partial(ready, pair)
                for index, pair in enumerate(pairs)]

    def _checked(self, algorithm: Algorithm, variant: Variant,
                 state: State) -> tuple[Work, float]:
        """The candidate as work, and its error: infinite where it wrote round its output or left a
        part of it as it was."""
        place = self.place
        sources = [self._source(index, spec) for index, spec in enumerate(variant.inputs)]
        margin = place.alignment
        guarded = [self._guarded(index, spec) for index, spec in enumerate(variant.outputs)]
        targets = [buffer.view(margin, spec.nbytes)
                   for buffer, spec in zip(guarded, variant.outputs, strict=True)]
        workspace = self._workspace_of(variant)

        def work(stream: Any) -> None:
            algorithm.launch(state, sources, targets, workspace, stream)

        work(None)
        place.synchronize()
        return work, max(self._error(*each) for each in
                         zip(guarded, variant.outputs, self._expected, strict=True))

    def _cold(self, work: Work) -> float | None:
        """The median time of single executions, each after the cache was filled with other data;
        None for processors, whose caches are not ours to fill."""
        if self.place.api != "cuda":
            return None
        nbytes = 2 * self.place.limits.cache_bytes
        if self._other is None:
            self._other = (self.place.empty(nbytes, "what fills the cache"),
                           self.place.empty(nbytes, "what fills the cache"))
        graph: Any = self.place.capture(work)
        samples = []
        for _ in range(_COLD_SAMPLES):
            self.place.copy(*self._other, nbytes)
            samples.append(self.place.time(lambda stream: graph(stream)))
        return statistics.median(samples)

    def _source(self, index: int, spec: TensorSpec) -> Buffer:
        buffers = self._sources.setdefault(spec, {})
        if index not in buffers:
            buffers[index] = self.place.upload(to_memory(self._arrays[index], spec),
                                               "a candidate's input")
        return buffers[index]

    def _guarded(self, index: int, spec: TensorSpec) -> Buffer:
        """Memory for an output between guards, shared by all candidates of that layout, and
        filled with what none of them writes."""
        key = (index, spec)
        if key not in self._targets:
            fill = np.full(spec.nbytes + 2 * self.place.alignment, _GUARD, np.uint8)
            self._targets[key] = (self.place.upload(fill, "a candidate's output"),
                                  self.place.upload(fill, "what a candidate writes over"))
        target, clean = self._targets[key]
        self.place.copy(target, clean, target.nbytes)
        return target

    def _error(self, buffer: Buffer, spec: TensorSpec, expected: np.ndarray) -> float:
        margin = self.place.alignment
        end = margin + spec.nbytes
        guards = np.concatenate([self._bytes(buffer, 0, margin),
                                 self._bytes(buffer, end, buffer.nbytes)])
        if (guards != _GUARD).any():
            return math.inf
        if self._images is None or spec.layout == "CHWN":
            stored = self._bytes(buffer, margin, end).view(spec.stored_dtype)
            result = from_memory(stored, spec)
            if self._images is not None:
                result = result[self._images]
            return _difference(result, expected, by_image=self._images is not None)
        # images lie one after another: only those that are compared are read back
        size = spec.nbytes // spec.shape[0]
        for image in range(spec.shape[0]):
            start = margin + image * size
            # the guard is a NaN; integers may well be what it is
            if image not in self._images and spec.stored_dtype.kind == "f" and (
                    self._bytes(buffer, start, start + min(size, margin)) == _GUARD).all():
                return math.inf
        one = replace(spec, shape=(1, *spec.shape[1:]))
        result = np.concatenate([
            from_memory(self._bytes(buffer, start, start + size).view(spec.stored_dtype), one)
            for start in (margin + image * size for image in self._images)])
        return _difference(result, expected, by_image=True)

    def _bytes(self, buffer: Buffer, start: int, end: int) -> np.ndarray:
        """A part of the memory; views begin at multiples of the alignment."""
        first = start // self.place.alignment * self.place.alignment
        memory = np.empty(end - first, np.uint8)
        self.place.read(buffer.view(first, end - first), memory)
        return memory[start - first:].copy()


def digest(weights: Mapping[str, np.ndarray]) -> str:
    """16 hexadecimal digits that tell a layer's constants from others of the same shapes."""
    found = hashlib.sha256()
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name])
        found.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return found.hexdigest()[:16]


def _difference(result: np.ndarray, expected: np.ndarray, *, by_image: bool) -> float:
    """The largest normalised error, of an image where they are apart; infinite where integers
    differ, or one is not finite where the other is."""
    if result.dtype.kind != "f":
        return 0.0 if np.array_equal(result, expected) else math.inf
    if not expected.size:
        return 0.0
    with np.errstate(over="ignore"):
        stated = expected.astype(np.float32)
    finite = np.isfinite(stated)
    if not np.array_equal(result[~finite].astype(np.float32), stated[~finite], equal_nan=True):
        return math.inf
    if not np.isfinite(result[finite]).all():
        return math.inf
    rows = len(expected) if by_image else 1
    wanted = np.where(finite, expected, 0).astype(np.float64).reshape(rows, -1)
    got = np.where(finite, result, 0).astype(np.float64).reshape(rows, -1)
    size = np.linalg.norm(wanted, axis=1)
    difference = np.linalg.norm(got - wanted, axis=1)
    return float(np.where(size > 0, difference / np.where(size > 0, size, 1), difference).max())


def _wrong(error: float) -> str:
    return f"{WRONG} (error {error:.1e})"
