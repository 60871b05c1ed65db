"""What users read of plans: reports, and files that are saved or refused.

The rows of the reports are made up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import reduce
from io import BytesIO
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.errors import GossamerError
from gossamer.model.builder import GraphBuilder
from gossamer.model.formats import with_formats
from gossamer.model.input_format import InputFormat
from gossamer.plan.plan import Plan
from gossamer.plan.report.html import page
from gossamer.plan.report.report import Report
from gossamer.plan.report.zeros import _SLOWER, break_even
from gossamer.plan.store.tuning_file import BadFile, parse
from tests.golden import Golden
from tests.model.onnx_models import weights
from tests.plan.store.test_plan_file import entries, rewrite
from tests.plan.store.tuning_cache.measurements import good_file
from tests.plan.store.tuning_cache.test_bad_files import BAD
from tests.simulated.algorithms import estimated_times, simulated
from tests.simulated.device import HARDWARE, SimulatedDevice


def row(layer: str, problem: str, algorithm: str, config: str = "", **columns: Any) -> dict:
    """Return the row of a step. columns: what differs from a step without weights and times."""
    return {"layer": layer, "layers": [layer], "problem": problem, "algorithm": algorithm,
            "config": config, "density": None, "precision": "fp32", "skips_zeros": False,
            "form": None, "rejected": {}, "zeros_reason": "", "kind": "3x3 convolution",
            "best_sparse_us": None, "break_even": None, **columns}


def timed(us: float, dense_us: float, **columns: Any) -> dict[str, Any]:
    """Return the columns of a step that was measured; all steps take 100 us."""
    return {"median_us": us, "p25_us": us - 0.5, "p75_us": us + 1, "share": us / 100,
            "error": 2e-7, "best_dense_us": dense_us, "speedup": dense_us / us, **columns}


def candidate(algorithm: str, config: str, us: float | None, reason: str) -> dict[str, Any]:
    columns = timed(us, us) if us else dict.fromkeys(timed(1, 1))
    return {**columns, "algorithm": algorithm, "config": config, "layouts": ["NCHW", "NHWC"],
            "precision": "fp16", "reason": reason}


SHAPES = "3x3 16x32x32 -> 16x32x32"
PRUNED_REPORT = Report("cuda:0", 8, [
    row("stem", "7x7 3x64x64 -> 16x32x32", "cudnn", "plan=0", precision="fp16", density=1.0,
        rejected={"winograd": "needs a 3x3 window"}, **timed(40.0, 40.0)),
    row("body.1", SHAPES, "direct_sparse", "rows=2 & columns=4", density=0.1, skips_zeros=True,
        break_even=break_even(0.1, 8.0, 12.0), **timed(8.0, 12.0, candidates=[
            candidate("cudnn", "plan=1", 12.0, "12.0 us against 8.0 us"),
            candidate("im2col_gemm", "tile=16", None, "wrong numbers (error 0.3)"),
            candidate("direct_sparse", "rows=2 & columns=4", 8.0, "taken")])),
    row("body.2", SHAPES, "im2col_gemm", "tile=32", density=0.6, zeros_reason=_SLOWER,
        best_sparse_us=30.0, break_even=break_even(0.6, 30.0, 20.0), **timed(
            20.0, 18.0, speedup_reason="18.0 us against 20.0 us, but its formats cost more")),
    row("<signs>", SHAPES, "popcount", density=1.0, precision="exact", **timed(32.0, 32.0), form={
        "layer": "<signs>", "form": "bits", "reason": "", "could_be_packed": True}),
], ["cuda:0 ran all 4 layers", "times scatter by 12%"], ["times scatter by 12%"],
    end_to_end_us=110.0, plans=[
        {"plan": plan, "median_us": us, "p25_us": us and us - 2, "p75_us": us and us + 2,
         "outcome": outcome, "is_taken": plan == "measured choice",
         "is_equal": "equal" in outcome} for plan, us, outcome in (
            ("measured choice", 110.0, "taken: the fastest"),
            ("dense algorithms only", 143.0, "143.0 us against 110.0 us"),
            ("second choice", 112.0, "112.0 us against 110.0 us, equal within noise"),
            ("third choice", None, "does not run: too little memory"))],
    shares={"our kernels": 60 / 110, "cuDNN": 40 / 110, "between layers": 10 / 110},
    call_us=250.0)
HOST = Report("host", 64, [
    row("conv1", "3x3 3x8x8 -> 16x8x8", "host_im2col", density=1.0),
    row("classes", "256 -> 10", "sparse_gemm", density=0.25, skips_zeros=True)],
    ["host ran all 2 layers"], end_to_end_us=64.0, call_us=60.0,
    shares={"our kernels": 0.996, "between layers": 0.004})


def test_reports(golden: Golden) -> None:
    facts = {"description": "DEVICE", "effort": "quick", "precision": "fp16", "version": "VERSION",
             "date": "DATE", "measured": 1, "reused": 25, "parameters": 3_504_872}
    for name, report, model, size in (("pruned", PRUNED_REPORT, "a/b & c.onnx", 13 * 2**19),
                                      ("host", HOST, "small", None)):
        golden.text(f"report_{name}.txt", f"{report}\n")
        html = page({**facts, "model": model, "device": report.device, "model_bytes": size},
                    [report])
        golden.text(f"report_{name}.html", re.sub("(?s)<style>.*</style>", "<style></style>", html))


GRAPH, MADE_BY = ("graph.json", "Graph"), ("plan.json", "made_by")
STEP = ("choices.json", "1", "steps", 0)
CHANGES: dict[str, tuple[Any, ...]] = {
    "that is older": ("plan.json", "version", 1), "that is newer": ("plan.json", "version", 99),
    "of something else": ("plan.json", "format", "song"), "with notes": (*GRAPH, "notes", 7),
    "with a text for notes": (*GRAPH, "notes", "text"),
    "with warnings": (*GRAPH, "warnings", [1]),
    "of another chip": ("plan.json", "device", "description", "other"),
    "of other units": ("plan.json", "device", "compute_units", "other"),
    "of another gossamer": (*MADE_BY, "gossamer", "other"),
    **{f"that takes {({field: value})}": (
        *GRAPH, "inputs", 0, "ValueInfo", "given", "InputFormat", field, value)
       for field, value in (("dtype", "int7"), ("layout", "NCWH"), ("scale", 0))},
    "of another driver": (*MADE_BY, "driver", "other"), "of no toolkit": (*MADE_BY, "toolkit", ""),
    "of other code": (*MADE_BY, "algorithms", "copy strided", "source", "0" * 16),
    "without steps": (*STEP[:3], []), "of another problem": (*STEP, "problem", "0" * 32),
    "of an unknown algorithm": (*STEP, "algorithm", "none"),
    "with code in it": (*GRAPH, "nodes", 0, "Node", "attributes", "dict", 1, 1, "0; exit()")}


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """The file of a plan of two layers on a simulated GPU, of which one step computes both."""
    build = GraphBuilder("two layers")
    y = build.conv2d(build.input("x", (None, 3, 5, 4)), build.constant("w", weights(4, 3, 3, 3)))
    build.output(build.apply("sigmoid", y), (None, 4, 3, 2))
    graph = with_formats(build.finish(), InputFormat("uint8", "NHWC", 0.5, (1, 2, 4)), "float16")
    with simulated(estimated_times(0)):
        Plan(graph, SimulatedDevice(HARDWARE["h200"])).save(tmp_path / "some.plan")
        yield tmp_path / "some.plan"


def test_a_saved_plan(golden: Golden, path: Path) -> None:
    text = ""
    for name, data in entries(path).items():
        array = np.load(BytesIO(data)) if name.endswith(".npy") else None
        text += f"{name}: " + (data.decode() if array is None else f"{array.dtype} {array.shape}\n")
    # numbers stand in one line, and what differs between versions and machines is left out
    text = re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    golden.text("plan_file.txt", re.sub(
        r'("(?:version|gossamer|description|driver|toolkit)": )("[^"]*"|\d+)'
        r'|(?<=: )"([0-9a-f]{16,}|[\d.]+)"', r"\1...", text))


def test_files_that_are_refused(golden: Golden, path: Path,
                                monkeypatch: pytest.MonkeyPatch) -> None:
    messages: dict[str, str] = {}

    def refuse(name: str, read: Callable[..., Any], *arguments: Any) -> None:
        with pytest.raises((GossamerError, BadFile)) as caught:
            read(*arguments)
        # what Python says, and versions, are left out; of equal messages the first one is kept
        message = re.sub(r"(?<=(?:t short|damaged) \()(?!ValueError|the n).*?(?=\)(;|$))"
                         r"|(?<=reads )\d+|(?<=\(format )\d+|(?<=this is )[\d.]+", "...",
                         str(caught.value).replace(str(path), "FILE"))
        if message not in messages.values():
            messages[name] = message

    device, whole = SimulatedDevice(HARDWARE["h200"]), path.read_bytes()
    refuse("a plan for another device", Plan.load, path, SimulatedDevice(HARDWARE["sm_75"]))
    for name, (entry, *keys, value) in CHANGES.items():
        def changed(content: Any, keys: list[Any] = keys, value: Any = value) -> Any:
            reduce(getitem, keys[:-1], content)[keys[-1]] = value
            return content

        path.write_bytes(whole)
        rewrite(path, entry, changed)
        refuse(f"a plan {name}", Plan.load, path, device)
    path.write_bytes(whole[:-99])
    refuse("a plan that is cut", Plan.load, path, device)
    path.unlink()
    refuse("a plan that is not there", Plan.load, path, device)
    monkeypatch.setattr("gossamer.plan.store.tuning_cache._source", lambda *_: "source")
    for name, (damage, _) in BAD.items():
        refuse(f"measurements, {name}", parse, damage(good_file(path.parent)[1]))
    golden.table("errors.txt", "plan files", messages)
