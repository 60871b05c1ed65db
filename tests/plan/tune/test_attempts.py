"""A layer for which nothing that was measured works gets another candidate."""

from __future__ import annotations

from typing import Any

from gossamer.device.registry import find
from gossamer.plan.measurement import Measurement
from gossamer.plan.tune.attempts import Attempts
from gossamer.plan.tune.estimates import Estimates
from gossamer.plan.tune.layer_times import LayerTimes
from gossamer.plan.tune.listing import Work
from gossamer.plan.tune.queue import AttemptQueue
from tests.plan.tune.test_queue import attempt, group

NOTHING: Any = None


def test_what_was_left_to_a_region_is_measured_where_nothing_else_works() -> None:
    layer = LayerTimes("layer")
    region = LayerTimes("region", parts=[layer], best_us=1.0)
    layer.covered_by.append([region])
    of = group("layer", layer)
    left = attempt(of, 14.0)
    left.measured = Measurement.of(left.algorithm, left.variant, not_tried=True,
                                   failure="not tried: region takes 1.0 us")
    work = Work(times={of.problem: layer})
    attempts = Attempts(NOTHING, NOTHING, 5, "fp32", everything=False, keeps_precisions=False)
    assert attempts.required_instead(work, [left]) == [left]
    queue = AttemptQueue([left], Estimates(find("host")), required_first=False)
    layer.best_us, layer.tried = 100.0, {left.key, *range(5)}  # type: ignore[arg-type]
    assert layer.region_instead is region and queue.pop() is left
