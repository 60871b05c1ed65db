"""Concatenation of packed tensors by copies of whole words."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.host import host_array
from gossamer.facts import REAL, ValueFacts
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.concat.join import join_launches
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.host_threads import threads_of
from gossamer.ops.packed import formats_for
from gossamer.ops.strided import cannot_index_variants
from gossamer.ops.weights import Weights
from gossamer.tensor import Format, TensorSpec


class PackedConcat(Algorithm):
    """Copies the words of each part to the part's slice of the output. Where channels are joined,
    the channels of all parts but the last one have to fill whole words."""

    op = "concat"
    name = "packed"

    def supports(self, problem: ConcatProblem, device: Device) -> str | None:
        if len(problem.outputs[0].shape) != 4:
            return "needs (N, C, H, W)"
        if problem.parts[0].dtype != "float32":
            return f"packs float32, not {problem.parts[0].dtype}"
        if not formats_for(_joined(problem)):
            return "needs values that are known to be -1, 0 or 1"
        if not _formats(problem):
            return "needs parts whose channels fill their words"
        return cannot_index_variants(self.variants(problem, device), device)

    def variants(self, problem: ConcatProblem, device: Device) -> Iterator[Variant]:
        for format_ in _formats(problem):
            inputs, outputs = (tuple(TensorSpec(spec.shape, format_) for spec in specs)
                               for specs in (problem.inputs, problem.outputs))
            yield Variant((), inputs, outputs)

    def prepare(self, weights: Weights, problem: ConcatProblem, variant: Variant,
                device: Device) -> State:
        if not device.compiles:
            return State(problem, variant, device)
        return State(problem, variant, device, join_launches(
            device, variant.inputs, variant.outputs[0], problem.axis))

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        if state.device.compiles:
            super().launch(state, inputs, outputs, workspace, stream)
            return
        assert isinstance(state.problem, ConcatProblem)
        words = [host_array(buffer, spec)
                 for buffer, spec in zip(inputs, state.variant.inputs, strict=True)]
        with threads_of(state.variant):
            np.concatenate(words, axis=state.problem.axis,
                           out=host_array(outputs[0], state.variant.outputs[0]))


def _joined(problem: ConcatProblem) -> ValueFacts:
    """Returns facts that hold for the values of all parts."""
    return functools.reduce(ValueFacts.join, problem.facts) if problem.facts else REAL


def _formats(problem: ConcatProblem) -> list[Format]:
    """Returns the packed formats in which each part begins at a word boundary of the output."""
    channels = [part.shape[1] for part in problem.parts[:-1]] if problem.axis == 1 else []
    return [format_ for format_ in formats_for(_joined(problem))
            if all(count % (8 * format_.stored_dtype.itemsize) == 0 for count in channels)]
