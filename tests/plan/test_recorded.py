"""What policies accept and refuse, how many configs efforts allow, and the reasons for which other
candidates are taken are as they were recorded."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np

from gossamer.errors import GossamerError
from gossamer.measure import Timing
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.host import HostIm2col
from gossamer.ops.registry import OPS
from gossamer.plan.candidate import Candidate, compared, why_not, why_not_others
from gossamer.plan.measurement import Measurement, counted, rounded
from gossamer.plan.policy import EFFORTS, Policy
from gossamer.tensor import TensorSpec
from tests.recorded import Recorded, as_text, digest


def outcome(fields: dict[str, Any]) -> str:
    try:
        Policy(**fields)
    except GossamerError as error:
        return str(error)
    return "accepted"


def test_policies(recorded: Recorded) -> None:
    x = [np.zeros((1, 3), np.float32)]
    cases: list[dict[str, Any]] = [{"effort": effort, "precision": precision}
                                   for effort in (None, "quick", "normal", "max", "none")
                                   for precision in ("fp32", "tf32", "fp16", "fp8")]
    cases += [{"effort": effort, "budget_s": budget} for effort in (None, "quick")
              for budget in (0, 1e-9, 1, -1, math.inf, math.nan, "1", 2.5)]
    cases += [{"sparse_threshold": number} for number in (0, 1e-9, 0.5, 1 - 1e-9, 1, -1, "0.5")]
    cases += [{"tolerance": number, "calibration": calibration}
              for number in (None, 0.1, "0.1") for calibration in (None, x)]
    cases += [{"threads": number} for number in ("one", "all", 1, 2, None)]
    cases += [{"only": name} for name in ("im2col_gemm", "im2col", "no such thing at all", "")]
    cases += [{"force": {"a": name}} for name in ("cudnn", "cudn", "zzzzzz")]
    cases += [{"only": "im2col_gemm", "sparse_threshold": 0.5},
              {"only": "im2col_gemm", "force": {"a": "cudnn"}}]
    texts = {", ".join(f"{name} {'images' if value is x else repr(value)}"
                       for name, value in fields.items()).replace(": ", " "): outcome(fields)
             for fields in cases}
    recorded("policies", texts)


def test_numbers_of_configs(recorded: Recorded) -> None:
    algorithms = [algorithm for op in OPS.values() for algorithm in op.algorithms]
    texts = {}
    for name, effort in EFFORTS.items():
        for algorithm in algorithms:
            key = (f"{name}, vendor {bool(algorithm.vendor)}, dense {algorithm.dense}")
            texts[key] = f"{effort.configs_of(algorithm)} {effort.most_configs_of(algorithm)}"
    recorded("numbers_of_configs", texts)


def _candidate(cost: float | None, name: str = "host_im2col", number: int = 0) -> Candidate:
    algorithm = HostIm2col()
    algorithm.name = name
    spec = TensorSpec((1, 3))
    variant = Variant((("number", number),), (spec,), (spec,), "fp32")
    measured = (Measurement.of(algorithm, variant, failure="it failed") if cost is None else
                Measurement.of(algorithm, variant, Timing(cost, cost, cost, 3)))
    return Candidate(algorithm, variant, measured)


def test_reasons_in_words(recorded: Recorded) -> None:
    texts = {}
    costs = (0.0, 1.0, 0.98, 0.981, 1.02, 1.021, math.inf)
    for cost, taken in product(costs, costs):
        texts[f"{cost} {taken}"] = " | ".join(
            compared(cost, taken, why) for why in ("", "a reason"))
    for cost in (None, 0.0, 1.0, 2.0):
        one, other = _candidate(cost), _candidate(1.0, "other", 1)
        texts[f"candidate of {cost}"] = as_text([
            one.cost, one.is_usable, one.is_same_as(_candidate(cost)), one.is_same_as(other),
            why_not(one, other), one.in_no_time().cost, one.in_no_time().in_its_time().cost,
            one.in_no_time().in_no_time() == one.in_no_time(),
            one.in_no_time().with_exclusion("it is wrong").measured])
        texts[f"others than {cost}"] = as_text(why_not_others(
            [one, _candidate(3.0), other, _candidate(0.5, "other", 2), _candidate(None, "third")],
            other, "a reason"))
    for number in (0, 1, 2, 12345.6, 0.000123456, 99995.0):
        timing = rounded(Timing(number, number, number, 4))
        texts[f"number {number}"] = f"{counted(int(number), 'layer')} {as_text(timing)}"
    for fields in ({"median_us": -1.0}, {"median_us": math.inf}, {"median_us": 0.0}, {},
                   {"failure": "it failed"}, {"median_us": 1.0, "error": math.inf},
                   {"median_us": 1.0, "build_s": math.nan}, {"median_us": 1.0, "cold_us": -0.5}):
        try:
            text = digest(Measurement("a", "c", ("NCHW",), ("NCHW",), "fp32", **fields))
        except ValueError as error:
            text = str(error)
        texts[f"measurement {as_text(fields)}".replace(": ", " ")] = text
    recorded("reasons", texts)
