"""The program that each contender of the suite `tuning` runs in a process of its own. The process
makes a network ready, runs the network once, and prints the time of both steps in one JSON line.

gossamer_bench.fresh_process writes the job into FOLDER and starts `python -m
gossamer_bench.first_run FOLDER`, which writes the results of the run into FOLDER too.
"""

from __future__ import annotations

import importlib.util
import json
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.bench.work import OWN, AbsentError
from gossamer.device.registry import find
from gossamer.errors import UnsupportedError
from gossamer.io.text import duration_text
from gossamer.plan.api import compile as compile_plan
from gossamer.plan.plan import Plan
from gossamer_bench.fresh_process import Job


def main(folder: Path) -> None:
    """Does the job that lies in a folder."""
    job: Job = pickle.loads((folder / "job").read_bytes())
    try:
        output, answer = _gossamer(job) if job.contender == OWN else _torch(job)
    except AbsentError as reason:
        print(json.dumps({"absent": str(reason)}))
        return
    np.save(folder / "output.npy", output[:job.checked])
    print(json.dumps(answer))


def _gossamer(job: Job) -> tuple[np.ndarray, dict[str, Any]]:
    """Compiles the network with gossamer, which measures its candidates, and runs it once."""
    device = find(job.device)
    device.synchronize()
    start = time.perf_counter()
    plan = compile_plan(job.graph, device, effort=job.effort, precision=job.precision)
    results = plan(job.x)
    seconds = time.perf_counter() - start
    assert plan.tuner is not None
    median_us = plan.end_to_end(len(job.x)).median_us
    config = (f"{plan.tuner.measured} candidates measured, {_not_tried(plan, len(job.x))} not "
              f"tried, plan {duration_text(median_us)}")
    output = results[0] if isinstance(results, tuple) else results
    return output, {"seconds": seconds, "layout": "", "config": config}


def _not_tried(plan: Plan, batch: int) -> int:
    """Returns the number of candidates that were listed but not measured, because they were
    expected to be too slow."""
    return sum((candidate.measured.failure or "").startswith("not tried")
               for layer in plan.program(batch).measured for candidate in layer.candidates)


def _torch(job: Job) -> tuple[np.ndarray, dict[str, Any]]:
    if importlib.util.find_spec("torch") is None:
        raise AbsentError("torch is not installed: pip install torch")
    from gossamer_bench.peers import torch_first_call

    try:
        return torch_first_call.first_call(job)
    except UnsupportedError as error:
        raise AbsentError(str(error)) from None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
