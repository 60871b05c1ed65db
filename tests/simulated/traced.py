"""Plans, the searches on the way to them, and all that they leave behind become texts that are the
same in every run."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gossamer.accuracy import normalised_error
from gossamer.plan.candidate import Candidate
from gossamer.plan.program import Program, Step
from gossamer.plan.report.html import page
from gossamer.plan.report.report import Report
from gossamer.plan.store.database import read
from gossamer.plan.tune.candidates import CandidateSet
from gossamer.plan.tune.layer_times import Attempt
from gossamer.plan.tune.sampling import Sampler
from gossamer.plan.tune.search import Progress, Search
from tests.recorded import digest
from tests.simulated.clock import ticking

_ERROR = 1e-7
"""The error that candidates count as having: its last digits differ between processors."""
_VERSIONED = ("plan.store.plan_file", "plan.store.tuning_cache")
"""The modules that write the version of gossamer, behind `gossamer.`."""


@dataclass
class Trace:
    """The record of what the searches for a plan did.

    tried: the layer and the key of each candidate that was measured, in order.
    skipped: the same for each candidate that was left out, with the reason.
    progress: what the user was told after each candidate.
    notes: the lines of text that the user was told.
    """

    tried: list[object] = field(default_factory=list)
    skipped: list[object] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (f"{len(self.tried)} tried {digest(self.tried)}, {len(self.skipped)} left out "
                f"{digest(self.skipped)}, progress {digest(self.progress)}, "
                f"notes {digest(self.notes)}")


@contextmanager
def traced(seconds: float = 1 / 1024) -> Iterator[Trace]:
    """Traces all searches in the body. There the clock goes on by some seconds with each reading,
    the code of algorithms, the version of gossamer and the errors of candidates count as always the
    same, and errors of networks have one digit."""
    trace = Trace()
    try_, run, checked = Sampler.try_, Search.run, CandidateSet.checked

    def traced_try(self: Sampler, attempt: Attempt, *rest: Any) -> None:
        try_(self, attempt, *rest)
        trace.tried.append((attempt.group.layer.name, attempt.key, attempt.measured))

    def traced_run(self: Search, *rest: Any) -> None:
        try:
            run(self, *rest)
        finally:
            trace.skipped += [
                (attempt.group.layer.name, attempt.key, attempt.measured, attempt.may_differ)
                for group in self._groups.values() for attempt in group.attempts.values()
                if attempt.measured is not None and attempt.measured.not_tried]

    with pytest.MonkeyPatch.context() as patch, ticking(seconds):
        patch.setattr(Sampler, "try_", traced_try)
        patch.setattr(Search, "run", traced_run)
        patch.setattr(CandidateSet, "checked", lambda *arguments: (
            checked(*arguments)[0], _ERROR))
        patch.setattr("gossamer.plan.choose.calibration.normalised_error", lambda *arguments: (
            float(f"{normalised_error(*arguments):.0e}")))
        patch.setattr("gossamer.plan.store.keys.module_hash", lambda module: module)
        patch.setattr("gossamer.plan.store.keys.sources", lambda module: (module, {}))
        for module in _VERSIONED:
            patch.setattr(f"gossamer.{module}.PACKAGE_VERSION", "some")
        yield trace


def steps_text(program: Program) -> str:
    """Returns the steps of a program in short: layers, algorithms, configs and formats."""
    return "; ".join(map(_step_text, program.steps))


def _step_text(step: Step) -> str:
    variant = step.placed_variant or step.variant
    formats = " > ".join(" ".join(str(spec.format) for spec in specs)
                         for specs in (variant.inputs, variant.outputs))
    return f"{step.layer.name}: {step.algorithm.name} {step.config_text} {formats}"


def program_text(program: Program) -> str:
    """Returns a digest of all of a program but the constants: of the values that each step reads
    and writes, the reasons and candidates of each step, and the memory of values."""
    return digest([
        program.batch, program.specs, program.aliases, list(program.constants), program.inputs,
        program.outputs, {name: asdict(place) for name, place in program.places.items()},
        program.reshapes,
        [(node.layer.name, node.layer.covers, node.device.name, node.reasons,
          list(map(_candidate, node.candidates))) for node in program.measured],
        [(step.layer.name, step.layer.op, step.layer.inserted, step.layer.source,
          step.layer.density, step.device.name, step.inputs, step.outputs, step.rejected,
          step.in_place, step.variant.precision, list(map(_candidate, step.candidates)))
         for step in program.steps]])


def _candidate(candidate: Candidate) -> object:
    return candidate.measured, candidate.copying


def report_text(report: Report) -> str:
    """Returns digests of the fields of a report, of its text, and of its page."""
    facts = {"model": "some.onnx", "device": report.device, "description": "some",
             "effort": "some", "precision": "some", "measured": 1, "reused": 2, "version": "some",
             "date": "some", "parameters": 3, "model_bytes": 4}
    return (f"report {digest(asdict(report))}, text {digest(str(report))}, "
            f"page {digest(page(facts, [report]))}")


def saved_text(path: Path) -> str:
    """Returns digests of the parts of a saved plan: header, graph, choices, and how many arrays it
    has."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        parts = [f"{name} {digest(archive.read(name).decode())}" for name in names
                 if name.endswith(".json")]
        return f"saved {' '.join(parts)}, {len(names) - len(parts)} arrays"


def stored_text(path: Path) -> str:
    """Returns how many lines of each kind a data base of measurements has, with digests."""
    content = read(path)
    return "stored " + ", ".join(
        f"{len(lines)} {kind} {digest(json.dumps(lines, sort_keys=True))}"
        for section in content["sections"] for kind, lines in section.items() if kind != "made_by")
