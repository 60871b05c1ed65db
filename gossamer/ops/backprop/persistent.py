"""Online back-propagation in one launch, with one work-group per network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.backprop.kernels import (
    BUFFERS,
    KernelBackprop,
    SharedMemoryLayout,
    not_plain,
    padded,
    registers_of,
)
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.conv2d.common import config_of, sizes_of
from gossamer.ops.launch import Launch
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("persistent.cl")

_OTHER_REGISTERS = 56
"""Registers that a work-item needs in addition to its weights."""


@dataclass(frozen=True)
class PersistentForm:
    """How a network is distributed over a work-group.

    weights: place of the first layer's weights. "registers": in registers. "local": in shared
    memory. "sparse": in shared memory, and inputs that are zero are skipped.
    threads: work-items per work-group.
    units: number of units of the first layer that each work-item computes.
    """

    weights: str
    threads: int
    units: int


# The configs are tried in this order on every device; the order is a rule of thumb.
FORMS = (
    PersistentForm("sparse", 512, 1), PersistentForm("registers", 512, 1),
    PersistentForm("registers", 256, 2), PersistentForm("registers", 512, 2),
    PersistentForm("local", 512, 1), PersistentForm("sparse", 256, 1),
    PersistentForm("local", 256, 2), PersistentForm("sparse", 128, 1),
    PersistentForm("registers", 128, 1), PersistentForm("local", 128, 1),
)


class Persistent(KernelBackprop):
    """Online training in one launch, with parameters in registers and shared memory.

    One work-group trains one network on all samples; several networks are trained in parallel.
    """

    name = "persistent"

    def supports(self, problem: BackpropProblem, device: Device) -> str | None:
        if (reason := super().supports(problem, device)) is not None:
            return reason
        if (reason := not_plain(problem)) is not None:
            return reason
        if problem.batch > 1:
            return "it trains online, with batches of 1; use batched or per_step"
        if any(_fits(problem, form, device) for form in FORMS):
            return None
        least = min(_PersistentLayout(problem, form).nbytes
                    for form in FORMS if form.weights == "local")
        return (f"its parameters and two samples' units need {least} bytes of shared memory, but "
                f"{device.name} has {device.limits.shared_bytes_opt_in}")

    def variants(self, problem: BackpropProblem, device: Device) -> Iterator[Variant]:
        # on a CPU, forms with weights in registers come last: the weights of many work-items exceed
        # a CPU's registers and would be in memory
        forms = FORMS if device.limits.subgroup_size > 1 else sorted(
            FORMS, key=lambda form: (form.weights == "registers", form.threads))
        seen = set()
        for form in forms:
            layout = _PersistentLayout(problem, form)
            key = (form.weights, form.threads, layout.splits, layout.share)
            if _fits(problem, form, device) and key not in seen:
                seen.add(key)
                yield Variant(config_of(form), problem.inputs, problem.outputs)

    def prepare(self, weights: Weights, problem: BackpropProblem, variant: Variant,
                device: Device) -> State:
        if problem.outputs[0].size == 0:
            return State(problem, variant, device)
        form = sizes_of(PersistentForm, variant)
        layout = _PersistentLayout(problem, form)
        kernel = device.compile(KernelSource.of(
            _SOURCE, "persistent", layout.macros, dynamic_shared=True))
        return State(problem, variant, device, [Launch(
            kernel, (problem.networks,), (form.threads,), (*BUFFERS, problem.samples),
            layout.nbytes)])


class _PersistentLayout(SharedMemoryLayout):
    """The shared memory of persistent.cl: upper layers, first layer, and two samples.

    lanes: number of neighbouring work-items that process the same inputs.
    splits: number of sets of `lanes` work-items, among which the inputs are divided.
    share: number of inputs per work-item.
    """

    def __init__(self, problem: BackpropProblem, form: PersistentForm) -> None:
        inputs, units = problem.sizes[:2]
        self.lanes = -(-units // form.units)
        self.splits = max(1, min(form.threads // self.lanes, -(-inputs // 4)))
        self.share = padded(-(-inputs // self.splits))
        stride, xs, lists = self.lanes * form.units, self.splits * self.share, -(-inputs // 32)
        super().__init__(problem, form.threads, self.splits * stride)
        sparse, registers = form.weights == "sparse", form.weights == "registers"
        self.macros.update(
            INPUTS=inputs, UNITS=units, LANES=self.lanes, SPLITS=self.splits, SHARE=self.share,
            PER_ITEM=form.units, REGISTERS=int(registers), SPARSE=int(sparse),
            X_AT=self.take(2 * 32 * lists if sparse else 2 * xs),
            LISTED_AT=self.take(2 * 32 * lists * sparse), LENGTHS_AT=self.take(2 * lists * sparse),
            FIRST_AT=self.take(0 if registers else (xs + self.splits * sparse) * stride),
            VELOCITY_AT=self.take(xs * stride if problem.velocity else 0))
        self.macros["FLOATS"] = self.floats


def _fits(problem: BackpropProblem, form: PersistentForm, device: Device) -> bool:
    """Return whether a work-group of the device can train a network."""
    limits, layout = device.limits, _PersistentLayout(problem, form)
    if form.threads > limits.work_group_size or layout.lanes > form.threads:
        return False
    if form.weights == "sparse" and problem.velocity:
        return False
    if form.weights == "registers":
        weight_registers = registers_of(form.threads) - _OTHER_REGISTERS
        if layout.share * form.units > weight_registers:
            return False
    return layout.nbytes <= limits.shared_bytes_opt_in
