"""How far a program's outputs are from the float64 reference, and which of its layers may be
computed in less than float32 so that they stay near enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gossamer.accuracy import normalised_error
from gossamer.errors import InputError
from gossamer.model.batch_axis import along_batch
from gossamer.model.graph import Graph
from gossamer.plan.program import Program, Step
from gossamer.plan.run.binding import batch_of
from gossamer.plan.tune.reference import Arrays, reference


@dataclass(frozen=True)
class Accuracy:
    """error: the largest normalised error of any output on any calibration image. tolerance: what
    was allowed. less_precise: layers that are computed in less than float32. held_back: layers
    that were faster so, and are in float32 for the tolerance's sake."""

    error: float
    images: int
    tolerance: float | None
    less_precise: tuple[str, ...]
    held_back: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = (f"error {self.error:.1e} on {self.images} calibration images, "
                f"{len(self.less_precise)} layers in less than float32")
        if self.held_back:
            text += f", {len(self.held_back)} held back in float32 for the tolerance"
        if self.tolerance is not None and not self.error <= self.tolerance:
            text += f"; the tolerance {self.tolerance:.1e} cannot be met by float32 either"
        return text


class Calibration:
    """Inputs on which programs are compared with the float64 reference: of any batch size where
    the outputs go by image, of as many as there are images where some node mixes them.

    inputs: one array an input of the graph, in its order, of any number of images.
    Raises InputError where they do not fit the graph, are empty or not finite.
    """

    def __init__(self, graph: Graph, inputs: Sequence[np.ndarray],
                 tolerance: float | None = None) -> None:
        if tolerance is not None and not 0 < tolerance < math.inf:
            raise InputError(f"tolerance {tolerance}: expected a normalised error above 0, such "
                             "as 1e-3")
        self.images = batch_of(graph, inputs)
        if not self.images:
            raise InputError("calibration inputs hold no image")
        self.tolerance = tolerance
        self._inputs = {info.name: np.asarray(array)
                        for info, array in zip(graph.inputs, inputs, strict=True)}
        for name, array in self._inputs.items():
            if not np.isfinite(array).all():
                raise InputError(f"calibration input {name!r} holds NaN or infinity: an error on "
                                 "such numbers says nothing; give real inputs")
        self._batched = {info.name for info in graph.inputs
                         if info.shape and info.shape[0] is None}
        self._expected = reference(graph, self._inputs)
        self._mixing, self._by_image = along_batch(graph, self.images)
        if self._mixing is not None:
            # all are computed at once, and may still have a row for each
            self._by_image = {name for name, array in self._expected.items()
                              if array.shape[:1] == (self.images,)}

    def check(self, batch: int) -> None:
        """Raises InputError where programs of a batch size cannot be compared."""
        if self._mixing is not None and batch != self.images:
            raise InputError(f"the calibration inputs hold {self.images} images, expected {batch} "
                             f"for batch {batch}: {self._mixing}")

    def error(self, run: Callable[[Arrays], Arrays], batch: int) -> float:
        """The largest normalised error of the outputs of run, which takes `batch` images. Raises
        InputError as check() does."""
        self.check(batch)
        worst = 0.0
        for first in range(0, self.images, batch or self.images):
            # the last images are filled up with the first ones
            taken = np.arange(first, first + batch) % self.images
            outputs = run({name: array[taken] if name in self._batched else array
                           for name, array in self._inputs.items()})
            count = min(batch, self.images - first)
            for name, expected in self._expected.items():
                y = outputs[name]
                if name in self._by_image:
                    rows = len(expected) // self.images
                    y, wanted = y[:count * rows], expected[first * rows:(first + count) * rows]
                    worst = max(worst, normalised_error(y, wanted, count))
                else:
                    worst = max(worst, normalised_error(y, expected, 1))
        return worst

    def choose(self, chosen: Callable[[frozenset[str] | None], Program],
               error: Callable[[Program], float]) -> tuple[Program, Accuracy]:
        """A program within the tolerance, and what it was held to.

        chosen: makes the fastest program in which only the named layers may be less precise than
        float32; None: all may. Where that exceeds the tolerance, as many layers as fit keep
        their lower precision, those first by which the most time is saved; how many is found by
        bisection, as if each made the error larger.
        """
        program = chosen(None)
        found = error(program)
        faster = [step.layer.name for step in sorted(_less_precise(program), key=_saved,
                                                     reverse=True)]
        if self.tolerance is None or found <= self.tolerance or not faster:
            return program, self.accuracy(program, found)
        fits, too_many = 0, len(faster)
        program = chosen(frozenset())
        found = error(program)
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            candidate = chosen(frozenset(faster[:middle]))
            off = error(candidate)
            if off <= self.tolerance:
                fits, program, found = middle, candidate, off
            else:
                too_many = middle
        return program, self.accuracy(program, found, faster)

    def accuracy(self, program: Program, error: float, faster: Sequence[str] = ()) -> Accuracy:
        """What is known of a program with that error. faster: the layers that would be faster in
        less than float32, if some had to be held back."""
        kept = tuple(step.layer.name for step in _less_precise(program))
        return Accuracy(error, self.images, self.tolerance, kept,
                        tuple(name for name in faster if name not in kept))


def _less_precise(program: Program) -> list[Step]:
    return [step for step in program.steps
            if step.variant.precision != "fp32" and not step.layer.inserted]


def _saved(step: Step) -> float:
    """Microseconds that the lower precision saves over the best float32 candidate."""
    taken = min((candidate.cost for candidate in step.candidates if candidate.variant == step.variant),
                default=0.0)
    return min((candidate.cost for candidate in step.candidates if candidate.variant.precision == "fp32"),
               default=math.inf) - taken
