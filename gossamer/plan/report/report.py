"""The report of a plan: what computes each layer and where."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gossamer.device.base import Device
from gossamer.device.native import processor as native
from gossamer.errors import one_line
from gossamer.io.text import duration_text
from gossamer.measure import Timing
from gossamer.ops.conv2d.sparse.formats import DENSEST
from gossamer.plan.candidate import Candidate, counted, fastest, why_not
from gossamer.plan.choose.outcomes import DENSE_ONLY, Accuracy, EndToEnd, Planned
from gossamer.plan.program import Program, Step
from gossamer.plan.report import zeros
from gossamer.plan.report.bits import LayerForm, form_of, forms_line
from gossamer.plan.report.cells import Table, layer_table
from gossamer.plan.report.part_notes import run_notes

OURS, HOST, BETWEEN = "our kernels", "on the host", "between layers"
_TIMES = ("median_us", "p25_us", "p75_us", "error")
"""Fields of a measurement that are columns in rows of steps and in rows of candidates."""


@dataclass(frozen=True, repr=False)
class Report:
    """The steps of a plan at one batch size.

    device: name of the plan's device.
    batch: number of images.

    rows: one dict for each step, in order. A step that computes a part (several layers in one run
    of ONNX Runtime) has one dict for each layer of the part. The keys of a row are:
    - layer, op, problem, density, algorithm, config, layout, device, flops, skips_zeros, and the
    columns of zero_columns().
    - layers: names of the layers that a fusion covers, or the name of the one layer.
    - precision: precision of the step; EXACT for exact products of signs.
    - form: a LayerForm as a dict; None unless the step is a convolution or product with weights.
    - rejected: for every other algorithm, why it was not taken.
    - For a step whose candidates were measured: median_us, p25_us, p75_us, error, best_dense_us,
    speedup (over the best dense algorithm), speedup_reason (if the best dense algorithm is faster
    by itself, why it was not taken; else "") and candidates (one dict for each candidate, with the
    candidate's times or the reason for its exclusion).
    - For a profiled step: share, and median_us, p25_us and p75_us of the profile instead of the
    tuner's. speedup is then None, and so is best_dense_us unless the row is a layer of a part.
    - For a layer of a part: best_dense_us and the candidates that compute the layer by itself.

    notes: sentences for the user.
    warnings: those notes that are about unexpected conditions, such as layers on the host, times
    that scatter, or a plan that was made elsewhere.

    end_to_end_us: microseconds of one execution between buffers on the device.
    end_to_end_cached: whether end_to_end_us was read from the cache.

    plans: if whole plans were timed against each other, one dict for each plan with the keys plan,
    median_us, p25_us, p75_us (from end to end), outcome, is_taken, and is_equal (whether the plan
    is as fast as the taken plan, within noise).

    shares: the shares of one execution's time, if all steps and the whole execution have times. The
    time is spent in gossamer's own kernels (OURS), in algorithms of other libraries (by the
    library's name), in layers that run on the host (HOST), and BETWEEN steps: in launches, gaps and
    copies to and from the host. Each step is timed separately with warm caches. A share is the sum
    of the medians of its steps, divided by the time from end to end. If the medians of all steps
    add up to more than that time, the divisor is their sum, and nothing is BETWEEN. A share of 0 is
    left out.

    call_us: microseconds of a call with NumPy arrays by the host's clock, if the plan was profiled.

    accuracy: the error on the calibration inputs, if the plan was compared with float64.
    """

    device: str
    batch: int
    rows: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    end_to_end_us: float | None = None
    end_to_end_cached: bool = False
    plans: list[dict[str, Any]] = field(default_factory=list)
    shares: dict[str, float] = field(default_factory=dict)
    call_us: float | None = None
    accuracy: Accuracy | None = None

    @property
    def zeros_line(self) -> str:
        """A line on the layers in which zeros are skipped.

        An example is 'zeros are skipped in 34 of 53 layers with weights: these layers alone take
        12.3 us, and 25.4 us with the best dense algorithms; the network takes 40.0 us, with dense
        algorithms only 52.0 us'. Times that were not measured are left out. "" if no layer skips
        zeros and all layers have few zeros.
        """
        weighted = [row for row in self.rows if row["density"] is not None]
        sparse = [row for row in weighted if row["skips_zeros"]]
        if not sparse and all(row["density"] > zeros.FEW_ZEROS for row in weighted):
            return ""
        text = (f"zeros are skipped in {len(sparse)} of {counted(len(weighted), 'layer')} "
                "with weights")
        if not sparse or not all(row.get("speedup") and row["best_dense_us"] for row in sparse):
            return text
        dense = sum(row["best_dense_us"] for row in sparse)
        taken = sum(row["best_dense_us"] / row["speedup"] for row in sparse)
        text += (f": these layers alone take {duration_text(taken)}, and "
                 f"{duration_text(dense)} with the best dense algorithms")
        medians = [row["median_us"] for row in self.plans if row["plan"] == DENSE_ONLY]
        if self.compared_us is not None and medians and medians[0] is not None:
            text += (f"; the network takes {duration_text(self.compared_us)}, with {DENSE_ONLY} "
                     f"{duration_text(medians[0])}")
        return text

    @property
    def compared_us(self) -> float | None:
        """Microseconds of one execution.

        If other plans were timed, this is the time measured together with them.
        """
        return next((row["median_us"] for row in self.plans
                     if row["is_taken"] and row["median_us"]), self.end_to_end_us)

    @property
    def zeros_lines(self) -> list[str]:
        """The lines on zeros.

        They are zeros_line, a line on layers whose weights are all zero, and a line with the reason
        for each kind of layer whose zeros are not skipped.
        """
        if not self.zeros_line:
            return []
        empty = sum(row["density"] == 0 and row["skips_zeros"] for row in self.rows)
        return [self.zeros_line,
                *([f"the weights of {counted(empty, 'layer')} are all zero: only the bias, the "
                   "activation and sums are computed"] if empty else []),
                *zeros.reason_lines(self.rows)]

    @property
    def forms_line(self) -> str:
        """A line on the layers computed on bits, and on why other layers are not.

        "" if no layer has inputs or weights that are signs.
        """
        return forms_line(LayerForm(**row["form"]) for row in self.rows
                          if row.get("form"))

    @property
    def shares_line(self) -> str:
        """A line on the shares of the end-to-end time; "" if they are not known.

        An example is 'of 196.0 us end to end: 83% our kernels, 12% cuDNN, 5% between layers'.
        """
        if not self.shares or self.end_to_end_us is None:
            return ""
        parts = [f"{share:.0%} {name}" if share >= 0.005 else f"less than 1% {name}"
                 for name, share in self.shares.items()]
        return f"of {duration_text(self.end_to_end_us)} end to end: {', '.join(parts)}"

    @property
    def call_line(self) -> str:
        """A line on the time of a call; "" if no call was timed.

        An example is 'a call with NumPy arrays takes 210.0 us, 146.0 us more than its kernels:
        checks, copies and launches'. If the measured time of the call is shorter than that of one
        execution, the line does not compare them.
        """
        if self.call_us is None or self.end_to_end_us is None:
            return ""
        text = f"a call with NumPy arrays takes {duration_text(self.call_us)}"
        more = self.call_us - self.end_to_end_us
        return text if more <= 0 else (
            f"{text}, {duration_text(more)} more than its kernels: checks, copies and launches")

    def __repr__(self) -> str:
        """Return one line for an interactive prompt; str() lists the layers."""
        time = "" if self.end_to_end_us is None else f", {duration_text(self.end_to_end_us)}"
        return (f"<Report of {counted(len(self.rows), 'step')} on {self.device}, batch "
                f"{self.batch}{time}; print() shows it>")

    def _repr_html_(self) -> str:
        """Return what notebooks show: the headline, the table of layers and the lines."""
        from gossamer.plan.report.html import fragment

        return fragment(self)

    @property
    def table(self) -> Table:
        """The table of layers, with times if all steps and the whole execution have them.
        """
        headings, rows = layer_table(self.rows)
        timed = self.end_to_end_us is not None and all("share" in row for row in self.rows)
        keys = ["layer", "problem", "algorithm", "config"] + (["time", "share"] if timed else [])
        return {key: headings[key] for key in keys}, rows

    @property
    def facts(self) -> list[str]:
        """Sentences on times, zeros and bits.

        Only what is known is included.
        """
        return [line for line in (self.shares_line, self.call_line, *self.zeros_lines,
                                  self.forms_line) if line]

    @property
    def lines(self) -> list[str]:
        """The sentences that follow the table."""
        time = [] if self.end_to_end_us is None else [
            f"end to end on {self.device}, batch {self.batch}: {duration_text(self.end_to_end_us)}"]
        return [*time, *self.facts, *(f"{row['plan']}: {row['outcome']}" for row in self.plans),
                *self.notes]

    def __str__(self) -> str:
        headings, rows = self.table
        widths = {key: max(len(row[key]) for row in (headings, *rows)) for key in headings}
        text = ["  ".join(row[key].ljust(width) for key, width in widths.items())
                for row in (headings, *rows)]
        # names may come from untrusted sources, and must not control the terminal
        return "\n".join(map(one_line, [*text, *self.lines]))


def make_report(planned: Planned, device: Device, timings: Sequence[Timing] | None,
                end_to_end: EndToEnd | None = None) -> Report:
    """Return the report of a program.

    timings: the times of the program's steps, if they were profiled.
    end_to_end: the time of one execution.
    """
    program, accuracy = planned.program, planned.accuracy
    rows = _rows(program)
    if timings is not None:
        total = sum(timing.median_us for timing in timings) or 1.0
        for step, row, timing in zip(program.shown, rows, timings, strict=True):
            row.update(median_us=timing.median_us, p25_us=timing.p25_us, p75_us=timing.p75_us,
                       share=timing.median_us / total)
            if "best_dense_us" in row:
                # the tuner's times are not comparable with a profile's; for a layer of a part, the
                # profile itself has the library's time
                row["best_dense_us"] = timing.median_us if step.part else None
            if "speedup" in row:
                row.update(speedup=None, speedup_reason="")
    where = _where(program, device)
    has_times = timings is not None or any(step.candidates for step in program.steps)
    notes = [where, *run_notes(program, has_times=has_times), *_without_code(program, device),
             *([str(accuracy)] if accuracy else [])]
    report = Report(device.name, program.batch, rows, notes,
                    [where] if program.host_steps(device) else [],
                    plans=list(planned.plans), accuracy=accuracy)
    if end_to_end is None or end_to_end.timing is None:
        return report
    median = end_to_end.timing.median_us
    return replace(report, end_to_end_us=median, end_to_end_cached=end_to_end.cached,
                   shares=_shares(program, rows, median))


def _shares(program: Program, rows: Sequence[dict[str, Any]],
            end_to_end_us: float) -> dict[str, float]:
    """Return a report's shares from the rows' medians.

    {} if a median is missing.
    """
    if any(row.get("median_us") is None for row in rows):
        return {}
    spent = dict.fromkeys([OURS, *(step.algorithm.vendor for step in program.steps), HOST], 0.0)
    for step, row in zip(program.shown, rows, strict=True):
        default_name = OURS if step.device.compiles else HOST
        spent[step.algorithm.vendor or default_name] += row["median_us"]
    total = max(end_to_end_us, sum(spent.values()))
    spent[BETWEEN] = total - sum(spent.values())
    return {name: time / total for name, time in spent.items() if time > 0}


def _rows(program: Program) -> list[dict[str, Any]]:
    # the candidates of a part's layer are those that compute the layer alone
    alone = {node.layer.name: node.candidates for node in program.measured}
    return [_row(replace(step, candidates=alone.get(step.layer.name, ())) if step.part else step)
            for step in program.shown]


def _row(step: Step) -> dict[str, Any]:
    form = form_of(step.layer.name, step.problem, step.algorithm.exact)
    return {
        "layer": step.layer.name,
        "layers": list(step.layer.computes),
        "op": step.layer.op,
        "problem": step.problem.describe(),
        "density": step.layer.density,
        "algorithm": step.algorithm.name,
        "config": step.config_text,
        "precision": step.algorithm.stated_precision(step.variant),
        "form": None if form is None else asdict(form),
        "layout": step.variant.outputs[0].layout,
        "device": step.device.name,
        "flops": step.problem.flops,
        "skips_zeros": not step.algorithm.dense and step.layer.density != 1,
        "rejected": dict(step.rejected),
        **zeros.zero_columns(step),
        **(_measured(step) if step.candidates else {}),
    }


def _taken(step: Step) -> Candidate | None:
    """Return the candidate that computes a step.

    None for a layer that a part computes, and if nothing was measured.
    """
    return None if step.part or not step.candidates else step.candidate_of(step.candidates)


def _measured(step: Step) -> dict[str, Any]:
    """Return the columns of a step whose candidates were measured.

    The times are those that the tuner measured. For a layer that a part computes, the candidates
    are those that compute the layer by itself.
    """
    taken = _taken(step)

    def why_other(candidate: Candidate) -> str:
        if taken is not None:
            return why_not(candidate, taken)
        return (candidate.measured.failure
                or f"{duration_text(candidate.cost)} alone; computed with other layers: "
                   f"{step.part}")

    best_dense = min((candidate for candidate in step.candidates if candidate.algorithm.dense),
                     key=lambda candidate: candidate.cost, default=None)
    dense = math.inf if best_dense is None else best_dense.cost
    columns = {
        "best_dense_us": dense if math.isfinite(dense) else None,
        "candidates": [
            _candidate(candidate, "taken" if candidate is taken else why_other(candidate))
            for candidate in step.candidates]}
    if taken is None:
        return {**columns, "rejected": {**step.rejected, **{
            name: why_other(candidate)
            for name, candidate in fastest(step.candidates).items()}}}
    comparable = math.isfinite(dense) and taken.cost > 0 and not step.in_place
    reason = why_other(best_dense) if comparable and best_dense and dense < taken.cost else ""
    times = {name: 0.0 if step.in_place and name != "error" else getattr(taken.measured, name)
             for name in _TIMES}
    return {**columns, **times,
            "speedup": dense / taken.cost if comparable else None, "speedup_reason": reason}


def _candidate(candidate: Candidate, reason: str) -> dict[str, Any]:
    measured = candidate.measured
    return {
        "algorithm": measured.algorithm,
        "config": measured.config,
        "layouts": [*measured.inputs, *measured.outputs],
        "precision": candidate.algorithm.stated_precision(candidate.variant),
        **{name: getattr(measured, name) for name in _TIMES},
        "reason": reason,
    }


def _without_code(program: Program, device: Device) -> list[str]:
    """Return a line on what generated code would save, if its generator is missing.

    The list is empty if the generator is installed, or if too few weights are zero.
    """
    pruned = sum(layer.op == "conv2d" and layer.density is not None and 0 < layer.density <= DENSEST
                 for step in program.steps for layer in step.layer.members or (step.layer,))
    if device.compiles or not pruned or (reason := native.absent()) is None:
        return []
    return [f"zeros of {counted(pruned, 'layer')} would be skipped by generated code, which may be "
            f"several times as fast: {reason}"]


def _where(program: Program, device: Device) -> str:
    """Return the note on where layers and conversions run."""
    host_steps = program.host_steps(device)
    count = sum(_layer_count(step) for step in program.steps)
    if not host_steps:
        return (f"{device.name} ran all {count} layers" if count != 1
                else f"{device.name} ran the one layer")
    layers = sum(_layer_count(step) for step in host_steps)
    changes = sum(step.layer.inserted for step in host_steps)
    listed = "; ".join(f"{step.layer.name} ({'; '.join(step.rejected.values())})"
                       for step in host_steps)
    return (f"{device.name} ran {count - layers} of {counted(count, 'layer')}; {layers}"
            + (f" and {counted(changes, 'change')} of layout" if changes else "")
            + f" on host: {listed}")


def _layer_count(step: Step) -> int:
    """Return how many network layers a step computes."""
    if step.layer.members:
        return len(step.shown)
    return 0 if step.layer.inserted else len(step.layer.covers) or 1
