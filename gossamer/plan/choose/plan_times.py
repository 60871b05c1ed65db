"""End-to-end times of programs, measured or cached."""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence

from gossamer.device.base import Device
from gossamer.errors import DeviceLostError, first_line
from gossamer.measure import Task, interleave
from gossamer.model.graph import Graph
from gossamer.plan.candidate import candidate_key, rounded
from gossamer.plan.choose.outcomes import EndToEnd
from gossamer.plan.program import Program
from gossamer.plan.run.context import Context
from gossamer.plan.store.keys import identity, problem_key
from gossamer.plan.tune.tuner import Tuner

_BUDGET_US = 5e5
"""Largest total duration of a program's samples in microseconds."""
_SAMPLE_US = 1e4
"""Duration of one sample in microseconds."""


def is_clearly_faster(time: EndToEnd, other: EndToEnd) -> bool:
    """Return whether a program is faster than another by more than the samples' spread.

    The upper quartile of the first program's times must be below the lower quartile of the other
    program's times. Returns False unless both programs run.
    """
    return (time.timing is not None and other.timing is not None
            and time.timing.p75_us < other.timing.p25_us)


def end_to_end(graph: Graph, programs: Sequence[Program], device: Device, tuner: Tuner,
               note: Callable[[str], None] = lambda line: None) -> list[EndToEnd]:
    """Return the time of each of a network's programs; equal programs are timed once.

    If the cache has the times of all programs, these times are returned. If not, all programs are
    timed together, with their samples interleaved, and the times are stored.
    """
    keys = [program_key(program, device) for program in programs]
    distinct = dict(zip(keys, programs, strict=True))
    known = {key: EndToEnd(timing, cached=True) for key in distinct
             if (timing := tuner.cache.get_plan(key)) is not None}
    if len(known) < len(distinct):
        note(f"{graph.name} as a whole: {len(distinct)} plans")
        known = _timed_together(graph, distinct, device, tuner.limits.samples)
        tuner.cache.put_plans({key: (f"{graph.name}, batch {distinct[key].batch}", timed.timing)
                               for key, timed in known.items() if timed.timing is not None})
        if any(timed.failure for timed in known.values()):
            # the frames of an error's traceback refer to device memory, and only the garbage
            # collector frees them, because they are in reference cycles
            gc.collect()
    return [known[key] for key in keys]


def program_key(program: Program, device: Device) -> str:
    """Return 32 hexadecimal digits that identify what a program runs.

    The digits are a hash of the program's problems, algorithms with their sources and libraries,
    configs, layouts and precisions. The hash also covers the order of the steps, the values that
    each step reads and writes, and whether a step copies nothing.
    """
    numbers: dict[str, int] = {}

    def value_numbers(values: Collection[str]) -> list[int]:
        return [numbers.setdefault(program.root(value), len(numbers)) for value in values]

    text = json.dumps([
        value_numbers(program.inputs.values()), value_numbers(program.constants),
        [[problem_key(step.problem), *candidate_key(step.algorithm, step.variant),
          identity(step.algorithm, step.device), step.device is device, step.in_place,
          value_numbers(step.inputs), value_numbers(step.outputs)] for step in program.steps],
        value_numbers(program.outputs.values())])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _timed_together(graph: Graph, programs: Mapping[str, Program], device: Device,
                    repeats: int) -> dict[str, EndToEnd]:
    """Return the times of programs, or the reasons why they do not run.

    A program does not run if the programs before it leave too little memory for it.
    """
    results: dict[str, EndToEnd] = {}
    tasks: dict[str, Task] = {}
    for key, program in programs.items():
        try:
            tasks[key] = Context(graph, program, device).ready()
            device.synchronize()
        except DeviceLostError:
            raise
        except Exception as error:  # a program may fail in any way; its failure is reported
            tasks.pop(key, None)
            results[key] = EndToEnd(failure=f"does not run: {first_line(error)}")
    if not tasks:
        return results
    timings = interleave(list(tasks.values()), repeats=repeats, sample_us=_SAMPLE_US,
                         budget_us=_BUDGET_US * len(tasks), isolated=True)
    results.update({key: EndToEnd(rounded(timing))
                    for key, timing in zip(tasks, timings, strict=True)})
    return results
