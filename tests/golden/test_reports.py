"""What users read of two reports, as text and as a page: a pruned network that was measured on a
GPU, and a network on the host without measurements. Their rows are made up."""

from __future__ import annotations

import re
from typing import Any

from gossamer.plan.report.bits import MemoryUse
from gossamer.plan.report.html import page
from gossamer.plan.report.report import Report
from gossamer.plan.report.zeros import _SLOWER, break_even
from tests.golden import Golden


def row(layer: str, problem: str, algorithm: str, config: str = "", **columns: Any) -> dict:
    """Returns the row of a step. columns: what differs from a step without weights and times."""
    return {"layer": layer, "layers": [layer], "problem": problem, "algorithm": algorithm,
            "config": config, "density": None, "precision": "fp32", "skips_zeros": False,
            "form": None, "rejected": {}, "zeros_reason": "", "kind": "3x3 convolution",
            "best_sparse_us": None, "break_even": None, "build_s": None, "build_when": "now",
            "build_cached": False, "device_bytes": None, **columns}


def timed(us: float, dense_us: float, **columns: Any) -> dict[str, Any]:
    """Returns the columns of a step that was measured; all steps take 100 us."""
    return {"median_us": us, "p25_us": us - 0.5, "p75_us": us + 1, "share": us / 100,
            "error": 2e-7, "best_dense_us": dense_us, "speedup": dense_us / us,
            "build_s": us / 10, "build_when": "measured", "build_cached": us < 9,
            "device_bytes": 2**18, **columns}


def candidate(algorithm: str, config: str, us: float | None, reason: str) -> dict[str, Any]:
    columns = timed(us, us) if us else dict.fromkeys(timed(1, 1))
    return {**columns, "algorithm": algorithm, "config": config, "layouts": ["NCHW", "NHWC"],
            "precision": "fp16", "cold_us": us and 2 * us, "reason": reason}


IMAGES = "3x3 16x32x32 -> 16x32x32"
PRUNED = Report("cuda:0", 8, [
    row("stem", "7x7 3x64x64 -> 16x32x32", "cudnn", "plan=0", precision="fp16", density=1.0,
        rejected={"winograd": "needs a 3x3 window"}, **timed(40.0, 40.0)),
    row("body.1", IMAGES, "direct_sparse", "rows=2 & columns=4", density=0.1, skips_zeros=True,
        break_even=break_even(0.1, 8.0, 12.0), **timed(8.0, 12.0, candidates=[
            candidate("cudnn", "plan=1", 12.0, "12.0 us against 8.0 us"),
            candidate("im2col_gemm", "tile=16", None, "wrong numbers (error 0.3)"),
            candidate("direct_sparse", "rows=2 & columns=4", 8.0, "taken")])),
    row("body.2", IMAGES, "im2col_gemm", "tile=32", density=0.6, zeros_reason=_SLOWER,
        best_sparse_us=30.0, break_even=break_even(0.6, 30.0, 20.0), **timed(
            20.0, 18.0, speedup_reason="18.0 us against 20.0 us, but its formats cost more")),
    row("<signs>", IMAGES, "popcount", density=1.0, precision="exact", **timed(32.0, 32.0), form={
        "layer": "<signs>", "form": "bits", "reason": "", "could_be_packed": True}),
], ["cuda:0 ran all 4 layers", "times scatter by 12%"], ["times scatter by 12%"],
    end_to_end_us=110.0, plans=[
        {"plan": plan, "median_us": us, "p25_us": us and us - 2, "p75_us": us and us + 2,
         "outcome": outcome, "is_taken": plan == "measured choice"} for plan, us, outcome in (
            ("measured choice", 110.0, "taken: the fastest"),
            ("dense algorithms only", 143.0, "slower"), ("cudnn wherever it can", 165.0, "slower"),
            ("im2col_gemm wherever it can", 1100.0, "slower"),
            ("tiled_gemm wherever it can", None, "does not run: too little memory"))],
    shares={"our kernels": 60 / 110, "cuDNN": 40 / 110, "between layers": 10 / 110},
    call_us=250.0, memory=MemoryUse(500, 16000, 4000, 4000, 2000, 64000, 960, 5360, 90000, 400, 24))
HOST = Report("host", 64, [
    row("conv1", "3x3 3x8x8 -> 16x8x8", "host_im2col", density=1.0, build_s=0.0032),
    row("classes", "256 -> 10", "sparse_gemm", density=0.25, skips_zeros=True)],
    ["host ran all 2 layers"], end_to_end_us=64.0, call_us=60.0,
    shares={"our kernels": 0.996, "between layers": 0.004})


def test_reports(golden: Golden) -> None:
    facts = {"description": "DEVICE", "effort": "quick", "precision": "fp16", "version": "VERSION",
             "date": "DATE", "measured": 1, "reused": 25, "parameters": 3_504_872}
    for name, report, model, size in (("pruned", PRUNED, "a/b & c.onnx", 13 * 2**19),
                                      ("host", HOST, "small", None)):
        golden.text(f"report_{name}.txt", f"{report}\n")
        html = page({**facts, "model": model, "device": report.device, "model_bytes": size},
                    [report])
        golden.text(f"report_{name}.html", re.sub("(?s)<style>.*</style>", "<style></style>", html))
