"""What a plan runs where, layer by layer, as rows and as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gossamer.device.base import Device
from gossamer.measure import Timing
from gossamer.ops.algorithm import State
from gossamer.plan.program import Program, Step
from gossamer.plan.store.tuning_file import counted
from gossamer.plan.tune.prepare import Build
from gossamer.plan.tune.tuner import Candidate

if TYPE_CHECKING:
    from gossamer.plan.choose.baseline_plans import Comparison, EndToEnd
    from gossamer.plan.choose.calibration import Accuracy

OURS, HOST, BETWEEN = "our kernels", "on the host", "between layers"
DENSE = "dense algorithms only"
"""The plan that skips no zeros, among those that are compared."""
_WHEN = {"measured": "when measured", "now": "now"}
_SLOWEST = 3
"""Layers that are named."""
_FEW_ZEROS = 0.9
"""A density above which nobody asks what became of the zeros."""


@dataclass(frozen=True)
class Report:
    """rows: one dict a step, in order, with layer, op, problem, density, algorithm, config,
    precision, layout, device, flops, skips_zeros and rejected (for each other algorithm why it was
    not taken); build_s, build_when, build_cached and device_bytes: what preparing it took (packing
    weights, generating and compiling kernels), "measured" when its candidates were or "now" for
    this plan, whether the disk cache had a kernel of it, and the bytes of packed weights and code
    that it keeps on the device; None where that is not known; when profiled median_us, p25_us,
    p75_us, share; where the choice was measured cold_us, error, best_dense_us, speedup over that,
    and candidates: one dict each, with its times or the reason why it is excluded. notes: what the
    user should know. end_to_end_us: one execution, inputs and outputs on the device;
    end_to_end_cached: whether it was known from before.

    plans: where the measured choice was timed against the best plan of each single algorithm, one
    dict each: plan, median_us, p25_us, p75_us from end to end, and outcome.

    shares: where all steps and the whole have times, how one execution is spent: on kernels of
    ours (OURS), on algorithms of other libraries (by the library's name), on layers that run on
    the host (HOST), and BETWEEN: what the whole takes beyond the sum of its steps (launches, gaps,
    the copies round a layer that fell back to the host). A share is the sum of the steps' medians,
    each timed alone with warm caches, over the time of the whole; where the steps sum to more than
    the whole, it is over that sum, and nothing is between. A share of 0 is left out.

    accuracy: where the plan was compared with float64 on calibration inputs."""

    device: str
    batch: int
    rows: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)
    end_to_end_us: float | None = None
    end_to_end_cached: bool = False
    plans: list[dict[str, Any]] = field(default_factory=list)
    shares: dict[str, float] = field(default_factory=dict)
    accuracy: Accuracy | None = None

    @property
    def build_s(self) -> float | None:
        """Seconds that preparing the layers took, of those of which it is known."""
        known = [row["build_s"] for row in self.rows if row["build_s"] is not None]
        return sum(known) if known else None

    @property
    def device_bytes(self) -> int | None:
        """Of the layers' packed weights and code, where they are known; what layers share counts
        for each."""
        known = [row["device_bytes"] for row in self.rows if row["device_bytes"] is not None]
        return sum(known) if known else None

    @property
    def build_line(self) -> str:
        """'built in 3.41 s when measured (slowest: conv1 1.20 s, conv2 0.90 s), 31.4 MiB on the
        device'; "" where nothing is known."""
        if self.build_s is None:
            return ""
        known = [row for row in self.rows if row["build_s"] is not None]
        when = " or ".join(sorted({_WHEN[row["build_when"]] for row in known}, reverse=True))
        slowest = sorted(known, key=lambda row: -row["build_s"])[:_SLOWEST]
        told = f"built in {seconds_text(self.build_s)} {when}"
        if len(known) > 1:
            told += " (slowest: " + ", ".join(
                f"{row['layer']} {seconds_text(row['build_s'])}" for row in slowest) + ")"
        if self.device_bytes is not None:
            size, unit = (20, "MiB") if self.device_bytes >= 2**20 else (10, "KiB")
            told += f", {self.device_bytes / 2**size:.1f} {unit} on the device"
        if cached := sum(row["build_cached"] for row in known):
            told += f"; kernels of {counted(cached, 'layer')} came from the disk cache"
        if unknown := len(self.rows) - len(known):
            told += f"; not known of {counted(unknown, 'layer')}"
        return told

    @property
    def zeros_line(self) -> str:
        """'zeros are skipped in 34 of 53 layers with weights: alone these take 12.3 us, with the
        best dense algorithms 25.4 us; the network takes 40.0 us, with dense algorithms only 52.0
        us'; the times where they were measured; "" for a network without zeros."""
        weighted = [row for row in self.rows if row["density"] is not None]
        thin = [row for row in weighted if row["skips_zeros"]]
        if not thin and all(row["density"] > _FEW_ZEROS for row in weighted):
            return ""
        told = f"zeros are skipped in {len(thin)} of {counted(len(weighted), 'layer')} with weights"
        if not thin or any(row.get("best_dense_us") is None for row in thin):
            return told
        taken, dense = (sum(row[key] for row in thin) for key in ("median_us", "best_dense_us"))
        told += (f": alone these take {taken:.1f} us, with the best dense algorithms "
                 f"{dense:.1f} us")
        whole = [row["median_us"] for row in self.plans if row["plan"] == DENSE]
        if self.end_to_end_us is not None and whole and whole[0] is not None:
            told += (f"; the network takes {self.end_to_end_us:.1f} us, with {DENSE} "
                     f"{whole[0]:.1f} us")
        return told

    @property
    def shares_line(self) -> str:
        """'of 196.0 us end to end: 83% our kernels, 12% cuDNN, 5% between layers'; "" where the
        shares are not known."""
        if not self.shares:
            return ""
        told = [f"{share:.0%} {name}" if share >= 0.005 else f"less than 1% {name}"
                for name, share in self.shares.items()]
        return f"of {self.end_to_end_us:.1f} us end to end: {', '.join(told)}"

    def __str__(self) -> str:
        timed = self.end_to_end_us is not None and all("share" in row for row in self.rows)
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
        if self.end_to_end_us is not None:
            text.append(f"end to end on {self.device}, batch {self.batch}: "
                        f"{self.end_to_end_us:.1f} us")
        if self.shares:
            text.append(self.shares_line)
        text += [line for line in (self.zeros_line, self.build_line) if line]
        text += [f"{row['plan']}: {row['outcome']}" for row in self.plans]
        return "\n".join([*text, *self.notes])


def seconds_text(seconds: float) -> str:
    """'3.41 s', '12.3 ms', '45 us'."""
    if seconds >= 0.1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.1f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.0f} us"


def shown(step: Step, elapsed_us: float, state: State, level: int) -> str:
    """A step that just ran, for the debug levels from 2 on."""
    problem = step.problem
    # a layer that launched nothing took no time
    per_ns = 1e-3 / elapsed_us if elapsed_us else 0.0
    text = (f"{step.layer.name}: {problem.describe()}, {step.algorithm.name} on "
            f"{step.device.name}: {elapsed_us:.1f} us, {problem.flops * per_ns:.1f} GFLOP/s, "
            f"{problem.least_bytes * per_ns:.1f} GB/s")
    if level >= 3:
        text += f" [{step.variant.config_text}]"
        text += "".join(f"; not {name}: {reason}" for name, reason in step.rejected.items())
    if level >= 4:
        text += "".join(f"; {launch.kernel.name}: {launch.kernel.registers} registers, "
                        f"{launch.kernel.spill_bytes} bytes spilled" for launch in state.launches)
    return text


def why_not(candidate: Candidate, taken: Candidate, why: str = "") -> str:
    """Why a candidate was not taken for a layer; `why` of Comparison, where the plan is not the
    measured choice."""
    if why and candidate.cost < taken.cost:
        return f"{candidate.cost:.1f} us against {taken.cost:.1f} us, but {why}"
    return candidate.reason(taken)


def make_report(program: Program, device: Device, timings: Sequence[Timing] | None,
                whole: EndToEnd | None = None, comparison: Comparison | None = None,
                accuracy: Accuracy | None = None,
                builds: Sequence[Build | None] | None = None) -> Report:
    """builds: what preparing each step took for this plan, where that was done."""
    rows = [_row(step, comparison.why if comparison else "", built) for step, built
            in zip(program.steps, builds or [None] * len(program.steps), strict=True)]
    if timings is not None:
        total = sum(timing.median_us for timing in timings) or 1.0
        for row, timing in zip(rows, timings, strict=True):
            row.update(median_us=timing.median_us, p25_us=timing.p25_us, p75_us=timing.p75_us,
                       share=timing.median_us / total)
    notes = _notes(program, device) + ([str(accuracy)] if accuracy else [])
    report = Report(device.name, program.batch, rows, notes,
                    plans=comparison.plans if comparison else [], accuracy=accuracy)
    if whole is None or whole.timing is None:
        return report
    median = whole.timing.median_us
    return replace(report, end_to_end_us=median, end_to_end_cached=whole.cached,
                   shares=_shares(program, rows, median))


def _shares(program: Program, rows: Sequence[dict[str, Any]], whole_us: float) -> dict[str, float]:
    if not all("median_us" in row for row in rows):
        return {}
    spent = dict.fromkeys([OURS, *(step.algorithm.vendor for step in program.steps), HOST], 0.0)
    for step, row in zip(program.steps, rows, strict=True):
        ours = OURS if step.device.compiles else HOST
        spent[step.algorithm.vendor or ours] += row["median_us"]
    total = max(whole_us, sum(spent.values()))
    spent[BETWEEN] = total - sum(spent.values())
    return {name: time / total for name, time in spent.items() if time > 0}


def _row(step: Step, why: str, built: Build | None) -> dict[str, Any]:
    return {
        "layer": step.layer.name,
        "op": step.layer.op,
        "problem": step.problem.describe(),
        "density": step.layer.density,
        "algorithm": step.algorithm.name,
        "config": step.variant.config_text,
        "precision": step.variant.precision,
        "layout": step.variant.outputs[0].layout,
        "device": step.device.name,
        "flops": step.problem.flops,
        "skips_zeros": not step.algorithm.dense,
        "rejected": dict(step.rejected),
        **_built(step, built),
        **(_measured(step, why) if step.candidates else {}),
    }


def _taken(step: Step) -> Candidate:
    (taken,) = [candidate for candidate in step.candidates
                if (candidate.algorithm, candidate.variant) == (step.algorithm, step.variant)]
    return taken


def _built(step: Step, now: Build | None) -> dict[str, Any]:
    """What was measured goes before what it takes now, when the kernels are in the cache."""
    measured = _taken(step).measured if step.candidates else None
    if measured is not None and measured.build_s is not None:
        return {"build_s": measured.build_s, "build_when": "measured",
                "build_cached": measured.build_cached, "device_bytes": measured.device_bytes}
    if now is not None:
        return {"build_s": now.seconds, "build_when": "now", "build_cached": now.from_cache,
                "device_bytes": now.nbytes}
    return dict.fromkeys(("build_s", "build_when", "build_cached", "device_bytes"))


def _measured(step: Step, why: str) -> dict[str, Any]:
    """The columns of a step whose candidates were measured; times are those of the tuning."""
    taken = _taken(step)
    dense = min((candidate.cost for candidate in step.candidates if candidate.algorithm.dense), default=math.inf)
    comparable = math.isfinite(dense) and taken.cost > 0
    return {
        "median_us": taken.measured.median_us,
        "p25_us": taken.measured.p25_us,
        "p75_us": taken.measured.p75_us,
        "cold_us": taken.measured.cold_us,
        "error": taken.measured.error,
        "best_dense_us": dense if math.isfinite(dense) else None,
        "speedup": dense / taken.cost if comparable else None,
        "candidates": [_candidate(candidate, taken, why) for candidate in step.candidates],
    }


def _candidate(candidate: Candidate, taken: Candidate, why: str) -> dict[str, Any]:
    measured = candidate.measured
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
        "build_s": measured.build_s,
        "build_cached": measured.build_cached,
        "device_bytes": measured.device_bytes,
        "reason": "taken" if candidate is taken else why_not(candidate, taken, why),
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
