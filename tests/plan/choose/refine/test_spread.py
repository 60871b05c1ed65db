"""Plans that take about the same time: only a difference beyond the spread counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gossamer.measure import Task, Timing
from gossamer.plan.choose import plan_times
from gossamer.plan.plan import Plan
from tests.plan.choose.refine.separable import (
    CHOICE,
    DENSE,
    DEPTHWISE,
    OTHER,
    SAME,
    algorithm,
    outcomes,
    reset,
)


@pytest.mark.parametrize(("time", "outcome"), [
    (97.0, "97.0 us against 100.0 us, within the spread: the measured choice stays"),
    (104.0, "104.0 us against 100.0 us")])
def test_a_difference_within_the_spread_is_none(make: Callable[..., Plan], time: float,
                                                outcome: str,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    reset(monkeypatch, **{DEPTHWISE: 100.0, DENSE: time})
    plan = make()
    assert algorithm(plan.program(2)) == DEPTHWISE and plan.end_to_end(2).median_us == 100.0
    taken = "no other is faster by more than the spread" if time < 100 else "the fastest"
    assert outcomes(plan) == {CHOICE: f"taken: {taken}", OTHER: outcome,
                              SAME: "the same as measured choice"}
    (thin,) = [row for row in plan.report(2).rows if row["layer"] == "thin"]
    assert thin["rejected"][DENSE] == "20.0 us against 10.0 us"


@pytest.mark.parametrize(("rounds", "repeats", "taken"), [
    ([(97.0, 4.0), (97.0, 0.5)], [5, 10], DENSE),
    ([(97.0, 4.0), (102.0, 0.5)], [5, 10], DEPTHWISE),
    ([(97.0, 4.0), (97.0, 4.0), (98.0, 4.0)], [5, 10, 20], DEPTHWISE),
    ([(99.5, 4.0)], [5], DEPTHWISE),
    ([(50.0, 4.0)], [5], DENSE),
], ids=["clear then", "the other way", "never clear", "alike", "clear at once"])
def test_more_samples_are_taken_where_quartiles_touch(
    make: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, rounds: list[tuple[float, float]],
    repeats: list[int], taken: str
) -> None:
    """rounds: for each round the time of the dense program, and half the distance between its
    quartiles; the other program takes 100 us."""
    asked: list[int] = []

    def interleave(tasks: Sequence[Task], **options: Any) -> list[Timing]:
        time, spread = rounds[len(asked)]
        asked.append(options["repeats"])
        return [Timing(median, median - spread, median + spread, options["repeats"]) for median in (
            time if algorithm(task.work.__self__.program) == DENSE else 100.0  # type: ignore[attr-defined]
            for task in tasks)]

    monkeypatch.setattr(plan_times, "interleave", interleave)
    plan = make()
    assert algorithm(plan.program(2)) == taken and asked == repeats
    assert plan.end_to_end(2) == Timing(*(
        offset + rounds[-1][0] if taken == DENSE else offset + 100.0
        for offset in (0.0, -rounds[-1][1], rounds[-1][1])), repeats[-1])


def test_only_what_may_be_the_fastest_is_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def interleave(tasks: Sequence[str], **options: Any) -> list[Timing]:
        asked.append("".join(tasks))
        return [Timing(*{"a": (100.0, 95.0, 105.0), "b": (103.0, 99.0, 107.0),
                         "c": (120.0, 110.0, 130.0)}[task], options["repeats"]) for task in tasks]

    monkeypatch.setattr(plan_times, "interleave", interleave)
    timings = plan_times._timed({name: name for name in "cab"}, 10, 60.0)  # type: ignore[arg-type, misc]
    assert asked == ["cab", "ab", "ab"]
    assert {name: timing.repeats for name, timing in timings.items()} == {
        "a": 40, "b": 40, "c": 10}


def test_no_more_samples_are_taken_once_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def interleave(tasks: Sequence[str], **options: Any) -> list[Timing]:
        asked.append(options["repeats"])
        return [Timing(100.0, 90.0, 110.0 + number, 5) for number, _ in enumerate(tasks)]

    clock = iter([0.0, 0.0, 2.5])
    monkeypatch.setattr(plan_times, "interleave", interleave)
    monkeypatch.setattr(plan_times.time, "monotonic", lambda: next(clock))
    tasks = {"a": None, "b": None}
    plan_times._timed(tasks, 5, 2.0)  # type: ignore[arg-type]
    assert asked == [5]
