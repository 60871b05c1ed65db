"""Reports of drawn rows, as text, as a page and in their lines, are those that were recorded."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

from gossamer.model.infer.resolve import resolve
from gossamer.model.load import load
from gossamer.plan.choose.outcomes import DENSE_ONLY, MEASURED, WHEREVER
from gossamer.plan.report.forms import weights_line
from gossamer.plan.report.headline import headline
from gossamer.plan.report.html import page
from gossamer.plan.report.memory import MemoryUse
from gossamer.plan.report.report import Report, seconds_text
from gossamer.plan.report.summary import forms_of_layers, summarise
from gossamer.plan.report.zeros import _SLOWER, break_even
from tests.model.onnx_models import model, save, weights
from tests.recorded import Recorded, as_text, digest
from tests.simulated.networks import random_network

REPORTS = 60


def _time(rng: random.Random, unknown: float = 0.2) -> float | None:
    return None if rng.random() < unknown else round(rng.choice((0.5, 9, 300)) * rng.random(), 3)


def _candidate(rng: random.Random, reason: str) -> dict[str, Any]:
    median = _time(rng, 0.3)
    return {"algorithm": rng.choice(("tiled", "cudnn", "sparse")),
            "config": rng.choice(("", "a=1")),
            "layouts": ["NCHW", "NHWC"], "precision": rng.choice(("fp32", "fp16")),
            "median_us": median, "p25_us": median and median - 0.1, "p75_us": median and median + 1,
            "cold_us": _time(rng), "error": rng.choice((None, 0.0, 2e-7)),
            "build_s": rng.choice((None, 0.0, 2e-5, 0.02, 3.5)),
            "build_cached": rng.random() < 0.3, "device_bytes": rng.choice((None, 0, 3 * 2**19)),
            "reason": reason}


def _row(rng: random.Random, index: int) -> dict[str, Any]:
    """Returns a row with some of the columns that a row may have."""
    density = rng.choice((None, 0.0, 0.1, 0.9, 0.95, 1.0))
    built = rng.choice((None, 0.0, 3e-5, 0.02, 1.5))
    sparse = density is not None and rng.random() < 0.4
    row: dict[str, Any] = {
        "layer": f"layer {index} <a>", "layers": [f"layer {index} <a>"], "op": "conv2d",
        "problem": "conv2d 3x3", "density": density, "algorithm": rng.choice(("tiled", "cudnn")),
        "config": rng.choice(("", "a=1 & b=2")), "precision": rng.choice(("fp32", "fp16")),
        "form": rng.choice((None, {
            "layer": f"layer {index}", "form": rng.choice(("bits", "trits", "floats")),
            "reason": "its inputs are floats", "could_be_packed": True, "weights": 10 ** index,
            "layers": 1 + index, "has_signs": rng.random() < 0.7})),
        "layout": "NCHW", "device": "host", "flops": 12, "skips_zeros": sparse,
        "rejected": rng.choice(({}, {"winograd": "needs a 3x3 window"})),
        "kind": rng.choice(("3x3 convolution", "product")), "best_sparse_us": _time(rng, 0),
        "break_even": rng.choice((None, 0.0, 0.25, 1.0)),
        "zeros_reason": "" if sparse else rng.choice(("", _SLOWER, "was not tried")),
        "build_s": built, "build_when": built and rng.choice(("measured", "now")),
        "build_cached": built is not None and rng.random() < 0.5,
        "device_bytes": rng.choice((None, 0, 1000, 2**20 - 1, 2**20, 5 * 2**20))}
    if built == 0:
        row["build_when"] = "now"
    row["best_dense_us"] = rng.choice((7.0, 0.5))
    if rng.random() < 0.8:
        row |= {"median_us": _time(rng, 0.1), "p25_us": _time(rng), "p75_us": _time(rng),
                "speedup": rng.choice((None, 0.5, 2.0)), "error": rng.choice((None, 3e-7)),
                "speedup_reason": rng.choice(("", "its formats cost more elsewhere"))}
    if rng.random() < 0.6:
        row["candidates"] = [_candidate(rng, reason)
                             for reason in ("slower", "taken", "slower")[:rng.randrange(4)]]
    return row


def _report(seed: int) -> Report:
    rng = random.Random(seed)
    rows = [_row(rng, index) for index in range((0, 1, 2, 4)[seed % 4])]
    if rng.random() < 0.5:
        for row in rows:
            row |= {"median_us": 2.5, "share": 1 / len(rows)}
    plans: list[dict[str, Any]] = []
    for name in (MEASURED, DENSE_ONLY, "cudnn" + WHEREVER, "tiled_gemm" + WHEREVER,
                 "im2col_gemm" + WHEREVER)[:rng.randrange(6)]:
        median = _time(rng)
        plans.append({"plan": name, "median_us": median, "p25_us": median, "p75_us": _time(rng),
                      "outcome": "taken", "is_taken": name == MEASURED})
    end_to_end = rng.choice((None, 0.0, 12.5, 999.9, 1000.0, 999999.0, 1e6))
    return Report(
        "opencl:0", rng.choice((0, 1, 64)), rows, ["a note", "a warning <b>"],
        rng.choice(([], ["a warning <b>"])), end_to_end, rng.random() < 0.5, plans,
        rng.choice(({}, {"our kernels": 0.8, "cuDNN": 0.004, "between layers": 0.005}))
        if end_to_end else {},
        rng.choice((None, 5.0, 2000.0)), None,
        rng.choice((None, MemoryUse(*(10 ** number for number in range(11))))))


def test_reports(recorded: Recorded) -> None:
    facts = {"model": "folder/some<.onnx", "device": "opencl:0", "description": "a device",
             "effort": "quick", "precision": "fp16", "measured": 1, "reused": 2, "version": "1",
             "date": "today", "parameters": 3500000, "model_bytes": None}
    texts = {}
    for seed in range(REPORTS):
        report = _report(seed)
        size = None if seed % 2 else 2**20
        lines = [report.build_line, *report.zeros_lines, report.forms_line, report.shares_line,
                 report.call_line, *(f"{tile.number} {tile.meaning}" for tile in headline(report))]
        texts[str(seed)] = " | ".join([
            *lines, f"text {digest(str(report))}",
            f"page {digest(page({**facts, 'model_bytes': size}, [report, _report(seed + 1)]))}"])
    texts["page"] = page(facts, [_report(7)])
    texts["text"] = str(_report(19))
    recorded("reports", texts)


def test_numbers_in_words(recorded: Recorded) -> None:
    texts = {f"seconds {seconds:g}": seconds_text(seconds)
             for seconds in (0, 1e-6, 9.99e-4, 1e-3, 0.0999, 0.1, 12)}
    infinite = float("inf")
    for density in (None, 0.0, 0.1, 1.0):
        for sparse, dense in ((1.0, 2.0), (2.0, 1.0), (0.0, 1.0), (1.0, 0.0), (infinite, 1.0),
                              (1.0, infinite), (1.0, 20.0)):
            texts[f"break even {density} {sparse} {dense}"] = as_text(
                break_even(density, sparse, dense))
    recorded("report_numbers", texts)


def test_summaries_of_networks(recorded: Recorded, tmp_path: Path) -> None:
    texts = {}
    for seed in range(16):
        graph = load(str(save(random_network(seed), tmp_path)))
        texts[str(seed)] = digest(summarise(resolve(graph, 1 + seed % 3)))
    signs = model(
        [helper.make_node("Sign", ["x"], ["s"], "sign"),
         helper.make_node("Conv", ["s", "w"], ["a"], "on bits"),
         helper.make_node("Relu", ["a"], ["b"], "relu"),
         helper.make_node("Conv", ["b", "v"], ["c"], "on floats"),
         helper.make_node("Conv", ["c", "w"], ["y"], "signs of weights")],
        {"x": ("N", 4, 6, 5)}, {"y": 4},
        {"w": np.sign(weights(4, 4, 3, 3)), "v": weights(4, 4, 1, 1)})
    graph = load(str(save(signs, tmp_path)))
    forms = forms_of_layers(graph, 2)
    texts["signs"] = f"{as_text(forms)} {weights_line(forms.values())}"
    texts["no signs"] = weights_line(form for form in forms.values() if form.form == "floats")
    texts["rows"] = as_text(summarise(resolve(graph, 2)))
    recorded("summaries", texts)
