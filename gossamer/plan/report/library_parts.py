"""Sentences on the parts of a network that a library computes, each in one run."""

from __future__ import annotations

from gossamer.plan.measurement import counted
from gossamer.plan.program import Program


def run_notes(program: Program) -> list[str]:
    """Returns one sentence on the parts of a program, or an empty list where it has no parts."""
    parts = [step for step in program.steps if step.layer.members]
    if len(parts) == 1:
        (step,) = parts
        return [f"{step.algorithm.name}, {step.layer.name}: {step.algorithm.vendor} computes "
                f"{counted(len(step.shown), 'layer')} in one run; what each layer takes is its "
                "share by the library's profile"]
    if parts:
        count = sum(len(step.shown) for step in parts)
        return [f"{parts[0].algorithm.name}: {parts[0].algorithm.vendor} computes "
                f"{counted(count, 'layer')} in {len(parts)} runs; what each layer takes is its "
                "share of its run by the library's profile"]
    return []
