"""Checks of one layer's candidates against the reference."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial

import numpy as np

from gossamer.accuracy import LARGEST_ERROR
from gossamer.device.base import Device
from gossamer.device.native.threads import Jobs
from gossamer.errors import first_line
from gossamer.measure import Work
from gossamer.ops.algorithm import Algorithm, Problem, State, Variant
from gossamer.ops.registry import OPS
from gossamer.ops.weights import Weights
from gossamer.plan.candidate import Measurement
from gossamer.plan.program import Layer, build
from gossamer.plan.tune.discontinuity import Bounds, bounds, continuous_parts, has_discontinuities
from gossamer.plan.tune.memory import CandidateMemory
from gossamer.plan.tune.output_errors import VALUES_OF_ERROR, error_of

_CHECKED_IMAGES = 3
"""Minimum number of images that are compared with the reference."""
_CHECKED = 2**22
"""More images are compared as long as the number of their output values plus the number of their
operations is at most this limit."""
_DRAWS = 8
"""Number of times that inputs are drawn if an output has few values."""
_CHEAP = 2**26
"""Inputs are drawn several times only if the reference has at most this number of operations. A CPU
takes less than a second for this number."""

QUIET = np.errstate(all="ignore")
"""Silences NumPy's warnings about huge and infinite weights. The warnings are not needed, because
the comparison of outputs finds errors."""


class WrongNumbersError(Exception):
    """Raised if a candidate computes wrong numbers."""

    def __init__(self, error: float) -> None:
        super().__init__(f"wrong numbers (error {error:.1e})")


BuiltCheck = list[tuple[list[np.ndarray], State]]
"""For a problem with discontinuous functions, such as rounding: the problems that compute the
arguments of these functions. A check runs them in addition to the candidate. Each item holds the
reference's outputs for a problem, and the problem's prepared state."""


class CandidateChecks:
    """The checks of a layer's candidates, which all get the same inputs and constants.

    memory: the memory that these candidates share with the candidates of other layers.
    """

    def __init__(self, layer: Layer, device: Device, memory: CandidateMemory | None = None) -> None:
        self.problem = layer.problem
        self.device = device
        self.memory = CandidateMemory(device) if memory is None else memory
        self.weights: Weights = layer.weights_on(device)
        self.digest = layer.digest
        self._constants = layer.weights
        self._few, self._images = self._compared()
        self._seed = 0
        """Seed of the inputs."""
        self._bounds: dict[tuple[int, str], list[Bounds]] = {}
        self._bounds_lock = threading.Lock()
        self._is_discontinuous = has_discontinuities(self.problem)
        self._expected = self._drawn()
        self._parts = [(part, self._reference(few)) for part, few in zip(
            continuous_parts(self.problem), continuous_parts(self._few), strict=True)]
        """The problems that compute the arguments of discontinuous functions, each with the
        reference's outputs."""

    @QUIET
    def build_check(self, algorithm: Algorithm, variant: Variant) -> BuiltCheck:
        """Return the check of a candidate, ready to run.

        Other threads may call this method while the device checks and times candidates.
        """
        if self._is_discontinuous:
            self._bounds_of(self._rounding_of(variant))
        built: BuiltCheck = []
        if any(spec.format.is_packed for spec in variant.outputs):
            return built
        for part, expected in self._parts:
            if algorithm.supports(part, self.device) is None:
                # a vendor's library may support the candidate's epilogue but not this problem's
                with suppress(Exception) if algorithm.vendor else nullcontext():
                    built.append((expected, build(algorithm, self.weights, part, variant,
                                                  self.device)))
        return built

    def failed(self, algorithm: Algorithm, variant: Variant, failure: Exception) -> Measurement:
        """Return the measurement of a candidate that failed."""
        return Measurement.of(algorithm, variant, weights=self.digest, failure=reason_of(failure),
                              wrong_numbers=isinstance(failure, WrongNumbersError))

    def _compared(self) -> tuple[Problem, list[int] | None]:
        """Return the problem of the compared images, and their indices.

        The indices include the first and the last image. If the problem does not consist of images,
        the whole problem and None are returned.
        """
        one = self.problem.first_images(1)
        if one == self.problem:
            return one, None
        work = one.flops + sum(spec.size for spec in one.outputs)
        few = self.problem.first_images(max(_CHECKED_IMAGES, _CHECKED // max(work, 1)))
        count, total = few.outputs[0].shape[0], self.problem.outputs[0].shape[0]
        return few, [round(index * (total - 1) / max(count - 1, 1)) for index in range(count)]

    @QUIET
    def _reference(self, few: Problem) -> list[np.ndarray]:
        """Return the reference's outputs for the compared images."""
        inputs = self.memory.examples.of(self._few, self._seed)
        return OPS[few.op].reference(few, inputs, self._constants)

    @QUIET
    def _bounds_of(self, precision: str) -> list[Bounds]:
        """Return the error bounds of a correct candidate's outputs."""
        # several threads that build candidates may call this at the same time
        with self._bounds_lock:
            key = self._seed, precision
            if key not in self._bounds:
                inputs = self.memory.examples.of(self._few, self._seed)
                self._bounds[key] = bounds(self._few, inputs, self._constants, self._expected,
                                           precision)
            return self._bounds[key]

    def _rounding_of(self, variant: Variant) -> str:
        """Return the precision that bounds a variant's rounding errors.

        This is the problem's precision if the variant's own precision makes no difference for the
        values of the problem.
        """
        exact = variant.is_as_precise_as_float32(self.problem)
        return self.problem.rounding if exact else variant.precision

    @QUIET
    def _drawn(self) -> list[np.ndarray]:
        """Draw inputs, and return the reference's outputs.

        If an output has few values and the reference is cheap, inputs are drawn several times: all
        values of one draw may be near a discontinuity, or nearly zero. (If a sum of many numbers is
        nearly zero, the rounding of each number is a large relative error of the sum.) The draw
        with the fewest values near a discontinuity is kept. Among equal draws, the one is kept
        whose outputs with few values have the largest minimum of their 2-norms.
        """
        few = [number for number, spec in enumerate(self._few.outputs)
               if (self._is_discontinuous or spec.dtype.startswith("float"))
               and 0 < spec.size < VALUES_OF_ERROR]
        if not few or not 0 < self._few.flops <= _CHEAP:
            return self._reference(self._few)
        draws = {}
        for self._seed in range(_DRAWS):
            self._expected = self._reference(self._few)
            uncertain = sum(int(limit.uncertain.sum()) for limit in self._bounds_of("fp32")
                            ) if self._is_discontinuous else 0
            norm = min(float(np.linalg.norm(np.nan_to_num(
                self._expected[number].astype(np.float64), posinf=0.0, neginf=0.0)))
                for number in few)
            draws[-uncertain, norm, -self._seed] = self._expected
            if self._is_discontinuous and not uncertain:
                break
        best = max(draws)
        self._seed = -best[-1]
        return draws[best]

    @QUIET
    def checked(self, algorithm: Algorithm, variant: Variant, state: State,
                check: BuiltCheck) -> tuple[Work, float]:
        """Run a candidate once; return its work and its error.

        Raises WrongNumbersError if its numbers are wrong, or if it wrote outside of its output or
        left part of its output unwritten. Errors that the candidate itself raises are passed on.

        check: the result of build_check(). The outputs of its continuous problems are compared with
        the reference, too.
        """
        rounding = self._rounding_of(variant)
        nowhere: list[Bounds | None] = [None] * len(self._expected)
        limits = [*self._bounds_of(rounding)] if self._is_discontinuous else nowhere
        work, error = self._compared_work(algorithm, variant, state, self._expected, limits)
        if not error <= LARGEST_ERROR[rounding]:
            raise WrongNumbersError(error)
        for expected, other in check:
            _, off = self._compared_work(algorithm, variant, other, expected, nowhere)
            error = max(error, off)
        if not error <= max(LARGEST_ERROR[rounding], LARGEST_ERROR[variant.precision]):
            raise WrongNumbersError(error)
        return work, error

    def _compared_work(self, algorithm: Algorithm, variant: Variant, state: State,
                       expected: Sequence[np.ndarray],
                       limits: Sequence[Bounds | None]) -> tuple[Work, float]:
        """Run a prepared problem once; return its work and its error."""
        device, memory = self.device, self.memory
        sources = [memory.examples.buffer(self._few, index, spec, self._seed, self._images)
                   for index, spec in enumerate(variant.inputs)]
        margin = device.alignment
        guarded = [memory.guarded(index, spec) for index, spec in enumerate(variant.outputs)]
        targets = [buffer.view(margin, spec.nbytes)
                   for buffer, spec in zip(guarded, variant.outputs, strict=True)]
        workspace = memory.workspace_of(variant)

        jobs = algorithm.jobs(state, sources, targets, workspace)
        if jobs is None:
            work: Work = partial(algorithm.launch, state, sources, targets, workspace)
        else:
            # the jobs are prepared once, as in a plan
            work = Jobs(jobs, 1 if state.data is None else state.data.threads).run

        error = math.inf
        try:
            work(None)
            device.synchronize()
            error = max(error_of(buffer, spec, right, self._images, limit)
                        for buffer, spec, right, limit in zip(
                            guarded, variant.outputs, expected, limits, strict=True))
        finally:
            if not error <= LARGEST_ERROR[variant.precision]:
                # a wrong candidate may have overwritten its inputs, too
                memory.examples.forget()
        return work, error


def reason_of(failure: Exception) -> str:
    """Return the text of a candidate's failure, such as wrong numbers.
    """
    return str(failure) if isinstance(failure, WrongNumbersError) else (
        f"does not run: {first_line(failure)}")
