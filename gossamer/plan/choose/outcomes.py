"""Time and accuracy of a chosen program, and its comparison with other programs.

The module imports no code that measures, because reports import this module even if nothing was
measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gossamer.measure import Timing
from gossamer.plan.candidate import counted
from gossamer.plan.program import Program

if TYPE_CHECKING:
    from gossamer.plan.choose.assigner import Assigned, Assigner

MEASURED = "measured choice"
DENSE_ONLY = "dense algorithms only"
"""The name of the plan without algorithms that skip zeros."""
ONE_THREAD = "one thread"
"""The name of the plan whose layers each use one thread."""


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of a program.

    error: the largest normalised error of any output on any calibration image.
    images: number of calibration images.
    tolerance: the largest allowed error.
    less_precise: names of the layers that are computed in less than float32.
    held_back: names of the layers that would be faster in less than float32 and are computed in
    float32 because of the tolerance.
    """

    error: float
    images: int
    tolerance: float | None
    less_precise: tuple[str, ...]
    held_back: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = (f"error {self.error:.1e} on {counted(self.images, 'calibration image')}, "
                f"{counted(len(self.less_precise), 'layer')} in lower precision than float32")
        if self.held_back:
            text += f", {len(self.held_back)} kept in float32 to meet the tolerance"
        if self.tolerance is not None and not self.error <= self.tolerance:
            text += f"; float32 does not meet the tolerance {self.tolerance:.1e} either"
        return text


@dataclass(frozen=True)
class EndToEnd:
    """The time of one execution between device buffers.

    timing: the time; None if the program does not run.
    cached: whether the time was read from the cache.
    failure: why the program does not run.
    """

    timing: Timing | None = None
    cached: bool = False
    failure: str = ""


@dataclass(frozen=True)
class Planned:
    """A program for one batch size, and how it was chosen.

    assigner: the Assigner that made the program; None if nothing was measured.
    assigned: the assignment from which the program was made; None if nothing was measured.
    accuracy: the error on the calibration inputs; None without such inputs.
    notes: sentences for the user about the choice.
    end_to_end: the time of one execution; None if it was not measured.
    plans: the comparison with baseline plans; empty if no plans were compared. Each plan has a dict
    with the keys plan, median_us, p25_us, p75_us, outcome, is_taken and is_equal (whether the plan
    is as fast as the plan taken, within noise). The first dict is about the plan of the cheapest
    assignment.
    """

    program: Program
    assigner: Assigner | None = None
    assigned: Assigned | None = None
    accuracy: Accuracy | None = None
    notes: tuple[str, ...] = ()
    end_to_end: EndToEnd | None = None
    plans: Sequence[dict[str, Any]] = ()


