"""Online back-propagation by exact blocking.

The first layer's weights are updated and multiplied for a whole block of samples at once. The other
layers are trained sample by sample. This module contains the algorithm, and the configs with two
launches per block (in_turn.cl and advance.cl). The configs with one work-group per network are in
pipeline.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.backprop.blocked.gram import TILE, SampleProducts
from gossamer.ops.backprop.blocked.pipeline import (
    MMA_PIPELINES,
    PIPELINES,
    Pipeline,
    PipelineMma,
)
from gossamer.ops.backprop.kernels import (
    LOSSES,
    ORDER,
    PARAMETERS,
    SETTINGS,
    TARGETS,
    TRAINED,
    KernelBackprop,
    SharedMemoryLayout,
    X,
    aligned,
    not_plain,
    part_of_workspace,
)
from gossamer.ops.backprop.per_step import carry
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("in_turn.cl")
_ADVANCE = Path(__file__).with_name("advance.cl")
_UNITS_TILE, _SLICE = 8, 128
_LARGEST_GRID = 65535

MOST_LAUNCHES = 1 << 15
"""Maximum number of kernel launches per call."""


@dataclass(frozen=True)
class InTurn:
    """A config of exact blocking with two launches per block.

    In the first launch, many work-groups update the first layer's weights and multiply them by the
    samples of the block. In the second launch, one work-group per network trains the upper layers
    on the samples of the block, one by one.

    block: number of samples of a block.
    threads: work-items of the work-group that trains the upper layers.
    """

    block: int
    threads: int

    @property
    def config(self) -> tuple[tuple[str, int | str], ...]:
        return (("form", "launches"), ("block", self.block), ("threads", self.threads))

    def workspace(self, problem: BackpropProblem) -> int:
        """Return the bytes of workspace that the launches need."""
        return _Memory(problem, self).nbytes

    def why_unfit(self, problem: BackpropProblem, device: Device) -> str | None:
        """Return why the device cannot train the network; None if it can."""
        blocks, units = -(-problem.samples // self.block), problem.sizes[1]
        if 2 * blocks > MOST_LAUNCHES:
            return f"needs {2 * blocks} launches per call, at most {MOST_LAUNCHES} are allowed"
        if max(problem.networks, -(-units // _UNITS_TILE)) > _LARGEST_GRID:
            return (f"supports at most {_LARGEST_GRID} networks and {_LARGEST_GRID * _UNITS_TILE} "
                    "units in the first layer")
        if (sums := _Memory(problem, self).sum_count) >= 2**31:
            return f"needs {sums} sums per block, too many for 32-bit indices"
        if self.threads > device.limits.work_group_size:
            return (f"needs {self.threads} work-items per work-group, {device.name} allows "
                    f"{device.limits.work_group_size}")
        needed, limit = _InTurnLayout(problem, self).nbytes, device.limits.shared_bytes_opt_in
        if needed > limit:
            return f"needs {needed} bytes of shared memory, {device.name} has {limit}"
        return None

    def launches(self, problem: BackpropProblem, device: Device) -> list[Launch]:
        """Return the launches that train on all samples."""
        layout, memory = _InTurnLayout(problem, self), _Memory(problem, self)
        in_turn = device.compile(KernelSource.of(
            _SOURCE, "in_turn", layout.macros, dynamic_shared=True))
        advance = device.compile(KernelSource.of(
            _ADVANCE, "advance",
            {"THREADS": _SLICE, "UNITS_TILE": _UNITS_TILE, "BLOCK": self.block}))
        inputs, units = problem.sizes[:2]
        tiles = (-(-inputs // _SLICE), -(-units // _UNITS_TILE), problem.networks)
        x, targets, order, settings = map(input_buffer, (X, TARGETS, ORDER, SETTINGS))
        before, after = input_buffer(PARAMETERS), output_buffer(TRAINED)
        launches = []

        def advance_launch(done: int, done_count: int, following: int, count: int) -> Launch:
            """Return the launch that updates the first layer and multiplies it by the next block.

            The launch first updates the layer's weights by `done_count` samples, from sample `done`
            on. It then multiplies the weights by `count` samples, from sample `following` on.
            """
            return Launch(advance, tiles, (_SLICE, 1, 1), (
                x, order, settings, after if done_count else before, after, memory.deltas,
                memory.sums, inputs, units, problem.parameter_count, problem.samples, done,
                done_count, following, count))

        done = done_count = 0
        samples = memory.samples
        for part in samples.parts(device):
            launches.append(part.gram)
            for first in range(part.first, part.first + part.count, self.block):
                count = min(self.block, problem.samples - first)
                launches += [advance_launch(done, done_count, first, count), Launch(
                    in_turn, (problem.networks,), (self.threads,),
                    (targets, order, settings, after if first else before, after,
                     output_buffer(LOSSES), samples.products, samples.same, memory.sums,
                     memory.deltas, problem.samples, first, count, part.count,
                     first - part.first), layout.nbytes)]
                done, done_count = first, count
        return [*launches, advance_launch(done, done_count, 0, 0)]


IN_TURN = (InTurn(32, 256), InTurn(64, 256), InTurn(32, 512), InTurn(64, 512), InTurn(32, 128))


class _Memory:
    """The arrays in the workspace, as kernel arguments.

    samples: the inner products of samples.
    sums: partial sums of the first layer: one for each combination of a sample of the block, a unit
    and a slice of the inputs.
    deltas: changes of weights for an input of 1: one for each combination of a sample of the block
    and a unit of the first layer.
    sum_count: number of partial sums.
    nbytes: bytes of the workspace.
    """

    def __init__(self, problem: BackpropProblem, form: InTurn) -> None:
        self.samples = SampleProducts(problem, form.block)
        block = problem.networks * form.block * problem.sizes[1]
        self.sum_count = block * -(-problem.sizes[0] // _SLICE)
        sums_at = aligned(self.samples.nbytes)
        deltas_at = sums_at + aligned(4 * self.sum_count)
        self.sums = part_of_workspace(sums_at, 4 * self.sum_count)
        self.deltas = part_of_workspace(deltas_at, 4 * block)
        self.nbytes = deltas_at + 4 * block


class _InTurnLayout(SharedMemoryLayout):
    """The shared memory of in_turn.cl: the upper layers, and a block's sums and coefficients."""

    def __init__(self, problem: BackpropProblem, form: InTurn) -> None:
        units = problem.sizes[1]
        splits = max(1, min(form.threads // units, form.block))
        super().__init__(problem, form.threads, 0)
        self.macros.update(
            NARROW=0, UNITS=units, SPLITS=splits, BLOCK=form.block, REACH=form.block, TILE=TILE,
            SLICES=-(-problem.sizes[0] // _SLICE), SUM_AT=self.take(form.block * units),
            COEFFICIENT_AT=self.take(3 * form.block), POWER_AT=self.take(form.block))
        self.macros["FLOATS"] = self.floats


_PIPELINES = (*MMA_PIPELINES, *PIPELINES)
_FORMS: dict[tuple[tuple[str, int | str], ...], PipelineMma | Pipeline | InTurn] = {
    form.config: form for form in (*_PIPELINES, *IN_TURN)}


class Blocked(KernelBackprop):
    """Online training that processes the first layer in blocks of samples.

    Up to rounding, the results equal those of updating all weights after each sample.

    Let x_s be sample s, and W_s the first layer's weights before the update by x_s. Let element j
    of g_s be the change of a weight of unit j for an input of 1, so W_{s+1} = W_s + g_s x_s^T. Then
    W_{s+1} x = W_s x + g_s (x_s . x) for every input x. Therefore only the correction g_s (x_s . x)
    and the upper layers have to be computed sample by sample.

    A form is a config together with the code that runs it. There are two kinds of forms. Pipelines
    train a network with one hidden layer in one work-group, with or without tensor cores. InTurn
    forms need two launches per block, and distribute the first layer's weights over many
    work-groups.
    """

    name = "blocked"

    def supports(self, problem: BackpropProblem, device: Device) -> str | None:
        if (reason := super().supports(problem, device)) is not None:
            return reason
        if (reason := not_plain(problem)) is not None:
            return reason
        if problem.batch > 1 or problem.velocity:
            return "it supports only online training (batch 1) without momentum"
        if any(form.why_unfit(problem, device) is None for form in _FORMS.values()):
            return None
        return (f"pipeline: {PIPELINES[0].why_unfit(problem, device)}; "
                f"launches: {IN_TURN[-1].why_unfit(problem, device)}")

    def is_pipelined(self, problem: BackpropProblem, device: Device) -> bool:
        """Return whether a pipeline can train the problem.

        If so, the first variants are pipelines.
        """
        return self.supports(problem, device) is None and any(
            form.why_unfit(problem, device) is None for form in _PIPELINES)

    def variants(self, problem: BackpropProblem, device: Device) -> Iterator[Variant]:
        for config, form in _FORMS.items():
            if form.why_unfit(problem, device) is None:
                yield Variant(config, problem.inputs, problem.outputs,
                              workspace=form.workspace(problem))

    def prepare(self, weights: Weights, problem: BackpropProblem, variant: Variant,
                device: Device) -> State:
        if problem.outputs[0].size == 0:
            return State(problem, variant, device)
        if problem.samples == 0:
            return State(problem, variant, device, [carry(problem, device)])
        launches = _FORMS[variant.config].launches(problem, device)
        return State(problem, variant, device, launches)
