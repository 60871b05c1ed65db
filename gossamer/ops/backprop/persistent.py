"""Back-propagation in one launch: a work-group a network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gossamer.device.base import Device, KernelSource
from gossamer.ops.algorithm import (
    Launch,
    State,
    Variant,
    Weights,
    input_buffer,
    output_buffer,
)
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.backprop.training import Training, activation_macros

_SOURCE = Path(__file__).with_name("persistent.cl")
_UPPER = Path(__file__).with_name("upper.h")

_REGISTER_FILE = 65536
_OTHER_REGISTERS = 56
"""What a work-item needs beside its weights."""


@dataclass(frozen=True)
class Form:
    """How a network lies on a work-group.

    weights: where the first layer's are, "registers", "local", or "sparse" (in local memory,
    and zeros of a sample are skipped). units: of the first layer, a work-item.
    """

    weights: str
    threads: int
    units: int

    @property
    def config(self) -> tuple[tuple[str, int | str], ...]:
        return (("weights", self.weights), ("threads", self.threads), ("units", self.units))


FORMS = (
    Form("sparse", 512, 1), Form("registers", 512, 1), Form("registers", 512, 2),
    Form("registers", 256, 2), Form("local", 512, 1), Form("sparse", 256, 1),
    Form("registers", 256, 4), Form("registers", 128, 1), Form("local", 256, 2),
    Form("sparse", 128, 1), Form("local", 128, 1), Form("local", 512, 4),
)


class Persistent(Training):
    """All of a run's samples in one launch; parameters stay in registers and local memory.

    Networks are trained side by side, a work-group each.
    """

    name = "persistent"

    def supports(self, problem: BackpropProblem, device: Device) -> str | None:
        if (reason := super().supports(problem, device)) is not None:
            return reason
        if any(_fits(problem, form, device) for form in FORMS):
            return None
        least = min(Layout(problem, form).nbytes for form in FORMS)
        return (f"its parameters and a batch's units need {least} bytes of local memory, "
                f"{device.name} has {device.limits.local_bytes_opt_in}")

    def variants(self, problem: BackpropProblem, device: Device) -> Iterator[Variant]:
        seen = set()
        for form in FORMS:
            layout = Layout(problem, form)
            key = (form.weights, form.threads, layout.splits, layout.share)
            if _fits(problem, form, device) and key not in seen:
                seen.add(key)
                yield Variant(form.config, problem.inputs, problem.outputs)

    def prepare(self, weights: Weights, problem: BackpropProblem, variant: Variant,
                device: Device) -> State:
        if problem.outputs[0].size == 0:
            return State(problem, variant, device)
        config = dict(variant.config)
        form = Form(str(config["weights"]), int(config["threads"]), int(config["units"]))
        layout = Layout(problem, form)
        kernel = device.compile(KernelSource.of(
            _SOURCE, "persistent", {**layout.macros, **activation_macros(problem)},
            dynamic_local=True, headers=(_UPPER,)))
        arguments = (*map(input_buffer, range(5)), *map(output_buffer, range(2)), problem.samples)
        return State(problem, variant, device, [Launch(
            kernel, (problem.networks,), (form.threads,), arguments, layout.nbytes)])


class Layout:
    """Where everything of a network lies in local memory, and the kernel's macros."""

    def __init__(self, problem: BackpropProblem, form: Form) -> None:
        sizes = problem.sizes
        inputs, units = sizes[0], sizes[1]
        self.lanes = -(-units // form.units)
        self.splits = max(1, min(form.threads // self.lanes, -(-inputs // 4)))
        self.share = padded(-(-inputs // self.splits))
        stride, xs, lists = self.lanes * form.units, self.splits * self.share, -(-inputs // 32)
        width = sum(map(padded, sizes[1:]))
        sparse, registers = form.weights == "sparse", form.weights == "registers"
        narrow = max(sizes[1:]) <= 32
        self._end = 0
        kept = 2 if problem.velocity else 1
        x_at = self._take(2 * 32 * lists if sparse else 2 * xs)
        listed_at, lengths_at = self._take(64 * lists * sparse), self._take(2 * lists * sparse)
        out_at, error_at = (self._take(problem.batch * width) for _ in range(2))
        wanted_at, term_at = self._take(2 * padded(sizes[-1])), self._take(
            problem.batch * padded(sizes[-1]))
        exponential_at = self._take(padded(sizes[-1]))
        partial_at = self._take(max(form.threads, self.splits * stride))
        bias_at = self._take(kept * width)
        upper = [self._take(padded(before) * row(after)) for after, before in
                 problem.layer_shapes[1:]]
        upper_end = self._end
        if problem.velocity:
            self._take(upper_end - (upper[0] if upper else upper_end))
        first_at = self._take(0 if registers else xs * stride)
        velocity_at = self._take(xs * stride if problem.velocity else 0)
        self.nbytes = 4 * self._end
        layers = len(sizes) - 1
        self.macros: dict[str, object] = {
            "LAYERS": layers, "SIZES": _table(sizes), "INPUTS": inputs, "UNITS": units,
            "OUTPUTS": sizes[-1], "WIDTH": width, "BATCH": problem.batch,
            "VELOCITY": int(problem.velocity),
            "UNIT_AT": _table([sum(map(padded, sizes[1:layer])) for layer in
                               range(1, layers + 1)]),
            "WEIGHT_AT": _table([0, *upper]),
            "PARAMETER_AT": _table([sum(after * (before + 1) for after, before in
                                        problem.layer_shapes[:layer])
                                    for layer in range(layers + 1)]),
            "THREADS": form.threads, "LANES": self.lanes, "SPLITS": self.splits,
            "SHARE": self.share, "PER_ITEM": form.units, "REGISTERS": int(registers),
            "SPARSE": int(sparse), "NARROW": int(narrow), "X_AT": x_at, "LISTED_AT": listed_at,
            "LENGTHS_AT": lengths_at, "OUT_AT": out_at, "ERROR_AT": error_at,
            "WANTED_AT": wanted_at, "TERM_AT": term_at, "EXPONENTIAL_AT": exponential_at,
            "PARTIAL_AT": partial_at, "BIAS_AT": bias_at,
            "UPPER_VELOCITY": upper_end - (upper[0] if upper else upper_end),
            "FIRST_AT": first_at, "VELOCITY_AT": velocity_at, "FLOATS": self._end,
        }

    def _take(self, floats: int) -> int:
        """The start of so many floats."""
        start = self._end
        self._end += padded(floats)
        return start


def _fits(problem: BackpropProblem, form: Form, device: Device) -> bool:
    limits, layout = device.limits, Layout(problem, form)
    if form.threads > limits.group_size or layout.lanes > form.threads:
        return False
    if form.weights == "sparse" and problem.velocity:
        return False
    if form.weights == "registers":
        free = min(255, _REGISTER_FILE // form.threads) - _OTHER_REGISTERS
        if layout.share * form.units > free:
            return False
    return layout.nbytes <= limits.local_bytes_opt_in


def padded(count: int) -> int:
    """Rounded up to fours."""
    return -(-count // 4) * 4


def row(units: int) -> int:
    """Floats from one input's weights to the next one's: odd, so that neither walking along
    units nor along inputs meets conflicts of banks."""
    return padded(units) + 1


def _table(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
