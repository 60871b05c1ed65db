"""The choices of a program as plain data, and a program from them: nothing is measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import InputError, UnsupportedError
from gossamer.ops.algorithm import Algorithm, Variant
from gossamer.ops.registry import OPS
from gossamer.plan.choose.builder import LayerChoice, ProgramBuilder
from gossamer.plan.choose.eligibility import first_in_order
from gossamer.plan.program import Layer, Program, Step
from gossamer.plan.store.keys import layout_text, libraries, problem_key, source_hash
from gossamer.plan.store.tuning_file import candidate_key
from gossamer.tensor import TensorSpec, default_spec

Stored = Mapping[str, Any]


def stored(programs: Mapping[int, Program], device: Device) -> dict[str, list[dict[str, Any]]]:
    """One dict a step, in order, by batch size."""
    return {str(batch): [_stored(step, device) for step in programs[batch].steps]
            for batch in sorted(programs)}


def _stored(step: Step, device: Device) -> dict[str, Any]:
    name, config, inputs, outputs, precision = candidate_key(step.algorithm, step.variant)
    return {"layer": step.layer.name, "op": step.layer.op, "inserted": step.layer.inserted,
            "problem": problem_key(step.problem), "algorithm": name, "config": config,
            "inputs": list(inputs), "outputs": list(outputs), "precision": precision,
            "default_layouts": [_is_default(spec) for spec in
                                (*step.variant.inputs, *step.variant.outputs)],
            "on_host": step.device is not device, "rejected": dict(step.rejected)}


def used_algorithms(plain: Mapping[str, Sequence[Stored]], device: Device) -> dict[str, Any]:
    """Of each algorithm that stored choices take and that is there, by op and name: its source
    hash, and the versions of the libraries that it calls on the device."""
    taken = {(each["op"], each["algorithm"]) for steps in plain.values() for each in steps}
    return {f"{op} {algorithm.name}": {"source": source_hash(algorithm),
                                       "libraries": libraries(algorithm, device)}
            for op in sorted({op for op, _ in taken}) for algorithm in OPS[op].algorithms
            if (op, algorithm.name) in taken}


class StoredChoices:
    """The choices of a saved plan, by batch size."""

    def __init__(self, path: Path, plain: Mapping[str, Sequence[Stored]]) -> None:
        self.path = path
        self.plain = plain
        self._choices = {int(batch): {(each["layer"], each["inserted"]): each for each in steps}
                         for batch, steps in plain.items()}
        if not self._choices:
            raise ValueError("it has no choices")

    @property
    def batches(self) -> list[int]:
        return list(self._choices)

    def program(self, layers: Iterable[Layer], batch: int, inputs: Mapping[str, TensorSpec],
                outputs: Mapping[str, TensorSpec], constants: Mapping[str, np.ndarray],
                device: Device) -> tuple[Program, list[str]]:
        """The program of a batch size, and what the user should know of it.

        A batch size that was not planned gets the choices of the nearest one (by ratio). Where
        one does not fit the layer, another config of the algorithm is taken, else the first
        algorithm that supports it. Raises InputError where a choice that was planned cannot be
        used.
        """
        planned = batch in self._choices
        nearest = min(sorted(self._choices), key=lambda each: _ratio(each, batch))
        choices = self._choices[nearest]
        unfit: list[str] = []

        def decide(builder: ProgramBuilder, layer: Layer) -> LayerChoice:
            each = choices.get((layer.name, layer.inserted))
            found = _restored(each, layer, device, exact=planned) if each else "it was not planned"
            if isinstance(found, LayerChoice):
                return found
            if planned:
                raise InputError(f"{self.path}: {layer.source or layer.name} cannot be computed "
                                 f"as planned: {found}; compile the network again")
            if not layer.inserted:
                unfit.append(layer.name)
            return _first(layer, device, each["algorithm"] if each else "")

        builder = ProgramBuilder(batch, inputs, constants, decide)
        for layer in layers:
            builder.add(layer)
        program = builder.finish(outputs)
        if planned:
            return program, []
        note = f"batch {batch} was not planned: the choices are those of batch {nearest}"
        if unfit:
            note += f", but for {', '.join(unfit)}, which they do not fit"
        return program, [note]


def _ratio(a: int, b: int) -> float:
    low, high = sorted((max(a, 1), max(b, 1)))
    return high / low


def _restored(each: Stored, layer: Layer, device: Device, *, exact: bool) -> LayerChoice | str:
    """The stored choice of a layer, or why there is none. exact: for the very same problem."""
    assert layer.problem is not None
    if exact and each["problem"] != problem_key(layer.problem):
        return f"it is {layer.problem.describe()}, which is not what was planned"
    layer_device = find("host") if each["on_host"] else device
    for algorithm in OPS[layer.op].algorithms:
        if algorithm.name != each["algorithm"]:
            continue
        reason = algorithm.supports(layer.problem, layer_device)
        if reason is not None:
            return f"{algorithm.name}: {reason}"
        for variant in algorithm.variants(layer.problem, layer_device):
            if _matches(each, algorithm, variant, exact=exact):
                return LayerChoice(algorithm, variant, layer_device, dict(each["rejected"]))
        return f"{algorithm.name} has no config {each['config']!r} for these layouts"
    return f"there is no algorithm {each['algorithm']!r}"


def _matches(each: Stored, algorithm: Algorithm, variant: Variant, *, exact: bool) -> bool:
    """Whether a variant is what was chosen. At another batch size a layout that lay in memory as
    the default does stands for the default: of one image, CHWN is NCHW."""
    name, config, inputs, outputs, precision = candidate_key(algorithm, variant)
    if (name, config, precision) != (each["algorithm"], each["config"], each["precision"]):
        return False
    layouts = [*each["inputs"], *each["outputs"]]
    if exact:
        return layouts == [*inputs, *outputs]
    return all(_is_default(spec) if default else layout_text(spec) == layout
               for spec, layout, default in zip((*variant.inputs, *variant.outputs), layouts,
                                                each["default_layouts"], strict=True))


def _is_default(spec: TensorSpec) -> bool:
    return spec.same_memory(default_spec(spec.shape, spec.dtype))


def _first(layer: Layer, device: Device, preferred: str) -> LayerChoice:
    """The first variant of the preferred algorithm, else of the first that supports the layer; on
    the host where the device has none."""
    assert layer.problem is not None
    rejected: dict[str, str] = {}
    algorithms = sorted(OPS[layer.op].algorithms, key=lambda each: each.name != preferred)
    for layer_device in (device, find("host")):
        reasons = {each.name: each.supports(layer.problem, layer_device) for each in algorithms}
        able = [each for each in algorithms if reasons[each.name] is None]
        if able:
            algorithm, variants = first_in_order(layer, able, layer_device)
            return LayerChoice(algorithm, variants[0], layer_device, rejected)
        rejected.update({name: reason for name, reason in reasons.items()
                         if reason is not None and name not in rejected})
    raise UnsupportedError(f"{layer.source or layer.name}: nothing computes "
                           f"{layer.problem.describe()}: "
                           + "; ".join(f"{name}: {why}" for name, why in rejected.items()))
