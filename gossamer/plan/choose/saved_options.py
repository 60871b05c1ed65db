"""Choices as JSON values, and programs restored from them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import InputError
from gossamer.ops.algorithm import Algorithm, Variant
from gossamer.ops.fused.problem import PartProblem
from gossamer.ops.host_threads import Threads, of_threads, threads_in, without_threads
from gossamer.ops.registry import OPS
from gossamer.plan.candidate import candidate_key
from gossamer.plan.choose.first_choices import FirstChoices
from gossamer.plan.choose.program_builder import LayerChoice, Network, ProgramBuilder
from gossamer.plan.fusion import find_fusions, part_of
from gossamer.plan.program import Layer, Program, Step
from gossamer.plan.store.keys import libraries, problem_key, source_hash
from gossamer.plan.store.plan_file import again
from gossamer.plan.tune.rows import timed_problem
from gossamer.tensor import Format

Stored = Mapping[str, Any]
"""The choice of one step, with the keys that _stored() writes."""

StoredPrograms = Mapping[str, Mapping[str, Any]]
"""Choices of programs by batch size: the steps in order, each Stored, and the reshapes."""


def stored(programs: Mapping[int, Program], device: Device) -> dict[str, dict[str, Any]]:
    """Return the choices of programs by batch size."""
    return {str(batch): {"steps": [_stored(step, device) for step in programs[batch].steps],
                         "reshapes": {name: asdict(format_) for name, format_
                                      in programs[batch].reshapes.items()}}
            for batch in sorted(programs)}


def _stored(step: Step, device: Device) -> dict[str, Any]:
    name, config, inputs, outputs, precision = candidate_key(step.algorithm, step.variant)
    return {"layer": step.layer.name, "op": step.layer.op, "inserted": step.layer.inserted,
            "covers": list(step.layer.covers),
            "problem": problem_key(timed_problem(step.problem, step.algorithm)),
            "algorithm": name, "config": config,
            "inputs": list(inputs), "outputs": list(outputs), "precision": precision,
            "on_host": step.device is not device, "rejected": dict(step.rejected)}


def used_algorithms(plain: StoredPrograms, device: Device) -> dict[str, Any]:
    """Return the versions of each algorithm in stored choices.

    These are the hash of the algorithm's source, and the versions of the libraries that it calls on
    the device. The keys are the op and the name of each algorithm, separated by a space. Algorithms
    that gossamer does not have are left out.
    """
    used = {(step["op"], step["algorithm"]) for program in plain.values()
            for step in program["steps"]}
    return {f"{op} {algorithm.name}": {"source": source_hash(algorithm),
                                       "libraries": libraries(algorithm, device)}
            for op in sorted({op for op, _ in used}) for algorithm in OPS[op].algorithms
            if (op, algorithm.name) in used}


class StoredChoices:
    """The choices of a plan, by batch size.

    path: the file that contains the choices; None if they were made in this process.
    notices: sentences for the user on how this machine differs from the machine that made the
    choices.
    made_for: text that states the input sizes for which the choices were made; "" if the network
    still has these sizes. If the network has other sizes, a choice may not fit the layer.
    threads: number of threads of each layer on the host; None for the numbers in the choices.
    """

    def __init__(self, path: Path | None, plain: StoredPrograms, notices: Sequence[str] = (),
                 made_for: str = "", threads: Threads | None = None) -> None:
        self.path = path or Path()
        self.plain: dict[str, Mapping[str, Any]] = {}
        self.notices = notices
        self.made_for = made_for
        self._threads = threads
        self.add(plain)
        if not self.plain:
            raise ValueError("it contains no choices")

    def add(self, plain: StoredPrograms) -> None:
        """Add the choices of further batch sizes."""
        self.plain.update(plain)

    @property
    def batches(self) -> list[int]:
        """The batch sizes that have their own choices."""
        return list(map(int, self.plain))

    def program(self, network: Network, device: Device) -> tuple[Program, list[str]]:
        """Return a network's program, and notes for the user.

        A batch size that was not planned gets the choices of the planned batch size that is nearest
        by ratio. If a choice does not fit the layer, another config of the chosen algorithm is
        taken. If the algorithm does not support the layer, the first algorithm that does is taken.
        Raises InputError if the choices of a planned batch size cannot be used.
        """
        batch, layers, outputs = network.batch, network.layers, network.outputs
        planned = batch in self.batches and not self.made_for
        nearest = min(sorted(self.batches), key=lambda other: (
            other != batch, max(other, batch) / max(1, min(other, batch))))
        stored = self.plain[str(nearest)]
        choices = {(step["layer"], step["inserted"]): step for step in stored["steps"]}
        unfit: list[str] = []
        first = FirstChoices(network, device)
        fusions = [fusion for fusion in (*find_fusions(layers, outputs),
                                         *_parts(choices.values(), layers, outputs))
                   if (step := choices.get((fusion.name, False))) is not None
                   and (planned or isinstance(
                       _restored(step, fusion, device, self._threads, exact=False), LayerChoice))]

        def decide(builder: ProgramBuilder, layer: Layer) -> LayerChoice:
            step = choices.get((layer.name, layer.inserted))
            restored = (_restored(step, layer, device, self._threads, exact=planned) if step
                        else "it was not planned")
            if isinstance(restored, LayerChoice):
                return restored
            if planned:
                raise InputError(f"{self.path}: {layer.source or layer.name} cannot be computed "
                                 f"as planned: {restored}; {again(self.path, device.name)}")
            if not layer.inserted:
                unfit.append(layer.name)
            return first.choice(builder, layer, step["algorithm"] if step else "")

        if planned:
            return network.program(device, decide, fusions, {
                name: Format(**{**fields, "border": tuple(fields["border"]),
                                "other_channels": tuple(fields["other_channels"])})
                for name, fields in stored["reshapes"].items()}), []
        program = network.program(device, decide, fusions)
        note = f"batch {batch} was not planned: the choices are those of batch {nearest}"
        if self.made_for:
            note = ("inputs of these shapes were not measured: the choices are those of batch "
                    f"{nearest} of {self.made_for}")
        if unfit:
            note += f", except for {', '.join(unfit)}, for which they are not valid"
        return program, [note]


def _parts(steps: Iterable[Stored], layers: Sequence[Layer],
           outputs: Collection[str]) -> Iterator[Layer]:
    """Yield the planned parts of which all layers still exist."""
    by_name = {layer.name: layer for layer in layers}
    for step in steps:
        if step["op"] == PartProblem.op and by_name.keys() >= set(step["covers"]):
            part = part_of(layers, [by_name[name] for name in step["covers"]], outputs)
            if part is not None:
                yield part


def _restored(step: Stored, layer: Layer, device: Device, threads: Threads | None, *,
              exact: bool) -> LayerChoice | str:
    """Return a layer's stored choice, or why it is unusable.

    threads: number of threads of the layer on the host; None for the number in the choice.
    exact: whether the choice may be used only if the layer's problem has the same key as the stored
    problem.
    """
    layer_device = find("host") if step["on_host"] else device
    for algorithm in OPS[layer.op].algorithms:
        if algorithm.name != step["algorithm"]:
            continue
        if exact and step["problem"] != problem_key(timed_problem(layer.problem, algorithm)):
            return (f"its problem is {layer.problem.describe()}, but {algorithm.name} was chosen "
                    "for another problem, or for weights with other zeros or values")
        reason = algorithm.supports(layer.problem, layer_device)
        if reason is not None:
            return f"{algorithm.name}: {reason}"
        number = threads_in(step["config"]) if threads is None else threads
        listed = _variants(algorithm, layer, layer_device, step["precision"])
        for variant in listed if number is None else of_threads(listed, number, layer_device):
            if _matches(step, algorithm, variant, layer_device):
                return LayerChoice(algorithm, variant, layer_device, dict(step["rejected"]))
        return f"{algorithm.name} has no config {step['config']!r} for these layouts"
    return f"there is no algorithm {step['algorithm']!r}"


def _variants(algorithm: Algorithm, layer: Layer, device: Device,
              precision: str) -> Iterator[Variant]:
    """Yield a precision's variants, then those of all precisions.

    The variants of other precisions come last, because libraries take long to list them.
    """
    yield from algorithm.variants_in(layer.problem, device, (precision,))
    yield from algorithm.variants(layer.problem, device)


def _matches(step: Stored, algorithm: Algorithm, variant: Variant, device: Device) -> bool:
    """Return whether a variant is the stored choice.

    The number of threads on the host is ignored.
    """
    name, config, *layouts, precision = candidate_key(algorithm, variant)
    stored_config = step["config"]
    if not device.compiles:  # the caller passes variants of one thread count
        config, stored_config = map(without_threads, (config, stored_config))
    return (name, config, *map(list, layouts), precision) == (
        step["algorithm"], stored_config, step["inputs"], step["outputs"], step["precision"])
