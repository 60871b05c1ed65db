"""Accuracy of programs, and the choice of lower precision.

The error of a program's outputs is computed against the float64 reference. As many layers as the
tolerance allows are computed in lower precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gossamer.accuracy import normalised_error
from gossamer.errors import InputError
from gossamer.model.graph import Graph, as_called
from gossamer.model.infer.resolve import along_batch
from gossamer.plan.choose.outcomes import Accuracy, Planned
from gossamer.plan.program import Program, Step
from gossamer.plan.run.binding import batch_of
from gossamer.plan.tune.network_reference import Arrays, reference


class Calibration:
    """Inputs on which programs are compared with the float64 reference.

    If a node mixes the images of a batch, the batch size of the programs must be the number of
    calibration images. If no node does, the programs may have any batch size.

    inputs: one array for each input of the graph, in the order of the graph's inputs. The arrays
    have any number of images, and the format in which callers pass inputs.
    tolerance: the largest allowed error; None if every error is allowed.

    Raises InputError if the inputs do not fit the graph, are empty or are not finite.
    """

    def __init__(self, graph: Graph, inputs: Sequence[np.ndarray],
                 tolerance: float | None = None) -> None:
        self.images = batch_of(as_called(graph), inputs)
        if not self.images:
            raise InputError("the calibration inputs contain no image")
        self.tolerance = tolerance
        self._inputs = {info.name: np.asarray(array)
                        for info, array in zip(graph.inputs, inputs, strict=True)}
        for name, array in self._inputs.items():
            if not np.isfinite(array).all():
                raise InputError(f"calibration input {name!r} contains NaN or infinity, for which "
                                 "no error is defined; give finite inputs")
        self._batched = {info.name for info in graph.inputs
                         if info.shape and info.shape[0] is None}
        self._expected = reference(graph, {
            info.name: self._inputs[info.name] if info.given is None
            else info.given.as_network_takes(self._inputs[info.name]) for info in graph.inputs})
        self._mixing, self._by_image = along_batch(graph, self.images)
        if self._mixing is not None:
            # an output may have a row for each image even if a node mixes images
            self._by_image = {name for name, array in self._expected.items()
                              if array.shape[:1] == (self.images,)}

    def check(self, batch: int) -> None:
        """Raise InputError if programs of a batch size cannot be compared with the reference."""
        if self._mixing is not None and batch != self.images:
            raise InputError(f"the calibration inputs have {self.images} images, expected {batch} "
                             f"for batch {batch}: {self._mixing}")

    def error(self, run: Callable[[Arrays], Arrays], batch: int) -> float:
        """Return the largest normalised error of the outputs of run().

        run() is called with `batch` images at a time. Raises InputError as check() does.
        """
        self.check(batch)
        worst = 0.0
        for first in range(0, self.images, batch or self.images):
            # the last batch is padded with the first images
            indices = np.arange(first, first + batch) % self.images
            outputs = run({name: array[indices] if name in self._batched else array
                           for name, array in self._inputs.items()})
            count = min(batch, self.images - first)
            for name, expected in self._expected.items():
                y = outputs[name]
                if name in self._by_image:
                    rows = len(expected) // self.images
                    expected = expected[first * rows:(first + count) * rows]
                    worst = max(worst, normalised_error(y[:count * rows], expected, count))
                else:
                    worst = max(worst, normalised_error(y, expected, 1))
        return worst

    def choose(self, chosen: Callable[[frozenset[str] | None], Planned],
               error: Callable[[Program], float]) -> Planned:
        """Return a plan within the tolerance, with its accuracy.

        In the first plan that is tried, every layer may be less precise than float32. If the error
        of this plan exceeds the tolerance, as many layers as possible keep their lower precision,
        starting with those that save the most time. The number of these layers is found by
        bisection, assuming that each further layer of lower precision increases the error.

        chosen: function that makes the fastest plan in which only the named layers may be less
        precise than float32; None stands for all layers.
        error: function that returns the error of a program.
        """
        taken = chosen(None)
        taken_error = error(taken.program)
        faster = [step.layer.name for step in sorted(_less_precise(taken.program), key=_saved,
                                                     reverse=True)]
        if self.tolerance is None or taken_error <= self.tolerance or not faster:
            return replace(taken, accuracy=self.accuracy(taken.program, taken_error))
        fits, too_many = 0, len(faster)
        taken = chosen(frozenset())
        taken_error = error(taken.program)
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            planned = chosen(frozenset(faster[:middle]))
            planned_error = error(planned.program)
            if planned_error <= self.tolerance:
                fits, taken, taken_error = middle, planned, planned_error
            else:
                too_many = middle
        return replace(taken, accuracy=self.accuracy(taken.program, taken_error, faster))

    def accuracy(self, program: Program, error: float, faster: Sequence[str] = ()) -> Accuracy:
        """Return the accuracy of a program with the given error.

        faster: names of layers that would be faster in less than float32. Those that the program
        computes in float32 are listed as held back.
        """
        less_precise = tuple(step.layer.name for step in _less_precise(program))
        return Accuracy(error, self.images, self.tolerance, less_precise,
                        tuple(name for name in faster if name not in less_precise))


def _less_precise(program: Program) -> list[Step]:
    """Return the network's steps that are less precise than float32."""
    return [step for step in program.steps if not step.layer.inserted
            and not step.variant.is_as_precise_as_float32(step.layer.problem)]


def _saved(step: Step) -> float:
    """Return the microseconds that a step's lower precision saves.

    The step's time is compared with the time of the fastest candidate that is as precise as
    float32.
    """
    cost = min((candidate.cost for candidate in step.candidates
                if candidate.variant == step.variant), default=0.0)
    return min((candidate.cost for candidate in step.candidates
                if candidate.variant.is_as_precise_as_float32(step.layer.problem)),
               default=math.inf) - cost
