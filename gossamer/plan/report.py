"""What a plan runs where, layer by layer, as rows and as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gossamer.device.base import Device
from gossamer.measure import Timing
from gossamer.ops.algorithm import State
from gossamer.plan.program import Program, Step
from gossamer.plan.tuner import Trial


@dataclass(frozen=True)
class Report:
    """rows: one dict a step, in order, with layer, op, problem, density, algorithm, config,
    layout, device, flops and rejected (for each other algorithm why it was not taken); when
    profiled median_us, p25_us, p75_us, share; where the choice was measured cold_us, error,
    best_dense_us, speedup over that, and candidates: one dict each, with its times or the reason
    why it is excluded. notes: what the user should know. end_to_end_us: one execution, inputs and
    outputs on the device."""

    device: str
    batch: int
    rows: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)
    end_to_end_us: float | None = None

    def __str__(self) -> str:
        timed = self.end_to_end_us is not None
        header = ["layer", "problem", "algorithm", "config"] + (["us", "%"] if timed else [])
        lines = [header]
        for row in self.rows:
            cells = [row["layer"], row["problem"], row["algorithm"], row["config"]]
            if timed:
                cells += [f"{row['median_us']:.1f}", f"{100 * row['share']:.1f}"]
            lines.append(cells)
        widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
        text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
                for line in lines]
        if timed:
            text.append(f"end to end on {self.device}, batch {self.batch}: "
                        f"{self.end_to_end_us:.1f} us")
        return "\n".join([*text, *self.notes])


def shown(step: Step, elapsed_us: float, state: State, level: int) -> str:
    """A step that just ran, for the debug levels from 2 on."""
    problem = step.problem
    # a layer that launched nothing took no time
    per_ns = 1e-3 / elapsed_us if elapsed_us else 0.0
    text = (f"{step.layer.name}: {problem.describe()}, {step.algorithm.name} on "
            f"{step.device.name}: {elapsed_us:.1f} us, {problem.flops * per_ns:.1f} GFLOP/s, "
            f"{problem.least_bytes * per_ns:.1f} GB/s")
    if level >= 3:
        text += f" [{step.variant.label}]"
        text += "".join(f"; not {name}: {reason}" for name, reason in step.rejected.items())
    if level >= 4:
        text += "".join(f"; {launch.kernel.name}: {launch.kernel.registers} registers, "
                        f"{launch.kernel.spill_bytes} bytes spilled" for launch in state.launches)
    return text


def make_report(program: Program, device: Device, timings: Sequence[Timing] | None,
                whole: Timing | None) -> Report:
    rows = [_row(step) for step in program.steps]
    if timings is not None:
        total = sum(timing.median_us for timing in timings) or 1.0
        for row, timing in zip(rows, timings, strict=True):
            row.update(median_us=timing.median_us, p25_us=timing.p25_us, p75_us=timing.p75_us,
                       share=timing.median_us / total)
    return Report(device.name, program.batch, rows, _notes(program, device),
                  whole.median_us if whole is not None else None)


def _row(step: Step) -> dict[str, Any]:
    return {
        "layer": step.layer.name,
        "op": step.layer.op,
        "problem": step.problem.describe(),
        "density": step.layer.density,
        "algorithm": step.algorithm.name,
        "config": step.variant.label,
        "layout": step.variant.outputs[0].layout,
        "device": step.device.name,
        "flops": step.problem.flops,
        "rejected": dict(step.rejected),
        **(_measured(step) if step.trials else {}),
    }


def _measured(step: Step) -> dict[str, Any]:
    """The columns of a step whose candidates were measured; times are those of the tuning."""
    (taken,) = [trial for trial in step.trials
                if (trial.algorithm, trial.variant) == (step.algorithm, step.variant)]
    dense = min((trial.cost for trial in step.trials if trial.algorithm.dense), default=math.inf)
    comparable = math.isfinite(dense) and taken.cost > 0
    return {
        "median_us": taken.measured.median_us,
        "p25_us": taken.measured.p25_us,
        "p75_us": taken.measured.p75_us,
        "cold_us": taken.measured.cold_us,
        "error": taken.measured.error,
        "best_dense_us": dense if math.isfinite(dense) else None,
        "speedup": dense / taken.cost if comparable else None,
        "candidates": [_candidate(trial, taken) for trial in step.trials],
    }


def _candidate(trial: Trial, taken: Trial) -> dict[str, Any]:
    measured = trial.measured
    return {
        "algorithm": measured.algorithm,
        "config": measured.config,
        "layouts": [*measured.inputs, *measured.outputs],
        "precision": measured.precision,
        "median_us": measured.median_us,
        "p25_us": measured.p25_us,
        "p75_us": measured.p75_us,
        "cold_us": measured.cold_us,
        "error": measured.error,
        "reason": "taken" if trial is taken else trial.reason(taken),
    }


def _notes(program: Program, device: Device) -> list[str]:
    """Layers are those of the network; a change of layout that was put in is named apart."""
    fallen = [step for step in program.steps if step.device is not device]
    count = sum(not step.layer.inserted for step in program.steps)
    if not fallen:
        return [f"{device.name} ran all {count} layers" if count != 1
                else f"{device.name} ran the one layer"]
    layers = sum(not step.layer.inserted for step in fallen)
    changes = len(fallen) - layers
    listed = "; ".join(f"{step.layer.name} ({'; '.join(step.rejected.values())})"
                       for step in fallen)
    return [f"{device.name} ran {count - layers} of {count} layers; {layers}"
            + (f" and {changes} changes of layout" if changes else "") + f" on host: {listed}"]
