"""Back-propagation by exact blocking: online training that handles the first layer in blocks of
samples."""

from __future__ import annotations

from collections.abc import Iterator

from gossamer.device.base import Device
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.backprop.blocked import in_turn, pipeline, pipeline_mma
from gossamer.ops.backprop.blocked.in_turn import InTurn
from gossamer.ops.backprop.blocked.pipeline import Pipeline
from gossamer.ops.backprop.blocked.pipeline_mma import PipelineMma
from gossamer.ops.backprop.common import KernelBackprop, not_plain
from gossamer.ops.backprop.per_step.per_step import carry
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.weights import Weights

_PIPELINES = (*pipeline_mma.FORMS, *pipeline.FORMS)
_FORMS: dict[tuple[tuple[str, int | str], ...], PipelineMma | Pipeline | InTurn] = {
    form.config: form for form in (*_PIPELINES, *in_turn.FORMS)}


class Blocked(KernelBackprop):
    """Trains online. The weights of the first layer are changed and multiplied for a block of
    samples at a time. Up to rounding, the results are the results of changing all weights after
    each sample.

    Let W_s be the first layer's weights before sample s, and let g_s have, for each hidden unit,
    the amount by which the update after sample s changes a weight whose input is 1. Then
    W_{s+1} x = W_s x + g_s (x_s . x) for every input x, so that only this correction and the upper
    layers have to be computed sample after sample.

    There are two kinds of configs. A pipeline trains a network with one hidden layer in one
    work-group, with or without tensor cores. The other configs take several launches per block,
    with the first layer's weights distributed over all work-groups.
    """

    name = "blocked"

    def supports(self, problem: BackpropProblem, device: Device) -> str | None:
        if (reason := super().supports(problem, device)) is not None:
            return reason
        if (reason := not_plain(problem)) is not None:
            return reason
        if problem.batch > 1 or problem.velocity:
            return "blocks are of online training without momentum"
        if any(form.why_unfit(problem, device) is None for form in _FORMS.values()):
            return None
        return (f"pipeline: {pipeline.FORMS[0].why_unfit(problem, device)}; "
                f"launches: {in_turn.FORMS[-1].why_unfit(problem, device)}")

    def is_pipelined(self, problem: BackpropProblem, device: Device) -> bool:
        """Returns whether one work-group can train a network; the first variants are then
        pipelines."""
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
