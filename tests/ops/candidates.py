"""Texts of what algorithms offer for problems on devices of several kinds, and of the launches that
they prepare, for tests that record them. Kernels are named and not built, so that a change of a
kernel's code changes no text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gossamer.device.base import Argument, Device, Kernel
from gossamer.device.host import HostBuffer, HostDevice
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import PRECISIONS, Algorithm, Problem, State, Variant
from gossamer.ops.launch import Launch
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec
from tests.ops.harness import op_of
from tests.recorded import as_text, digest
from tests.simulated.device import H200, OPENCL, SM_75, Hardware, SimulatedDevice

Choose = Callable[[list[Variant]], Iterable[Variant]]
"""The type of a function that selects the variants of an algorithm that are prepared."""


class NamedKernel(Kernel):
    """A kernel that was not built.

    text: the function, its file and its macros, or the code that was generated.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text


class NamingDevice(SimulatedDevice):
    """A simulated device that names kernels in place of building them.

    launched: the launches by which algorithms prepared their constants, as texts.
    """

    def __init__(self, hardware: Hardware, *, on_processors: bool = False) -> None:
        super().__init__(hardware)
        self._on_processors = on_processors
        self.launched: list[str] = []

    @property
    def on_processors(self) -> bool:
        return self._on_processors

    def compile(self, source: KernelSource) -> Kernel:  # type: ignore[override]
        return NamedKernel(source.function, _source_text(source))

    def assemble(self, key: Sequence[str],
                 generate: Callable[[], Sequence[Any]]) -> Sequence[Kernel]:
        # the first text of a key is the hash of the code that generates the programs
        return [NamedKernel(program.name, f"{digest(program.text)} {digest(list(key[1:]))}")
                for program in generate()]

    def empty(self, nbytes: int, purpose: str, stream: Any = None) -> HostBuffer:
        buffer = super().empty(nbytes, purpose, stream)
        buffer.bytes[...] = 0
        return buffer

    def launch(self, kernel: Kernel, groups: Sequence[int],  # type: ignore[override]
               work_group_size: Sequence[int], arguments: Sequence[Argument], *,
               shared_bytes: int = 0, stream: Any = None) -> None:
        self.launched.append(described(
            Launch(kernel, tuple(groups), tuple(work_group_size), tuple(arguments), shared_bytes)))


class _Host(HostDevice):
    """The host with the same limits on every machine."""

    def __init__(self) -> None:
        super().__init__()
        self.description = "the host"
        self.limits = replace(self.limits, compute_units=2, memory_bytes=2**34)


_SM_80 = Hardware("cuda", "a simulated A100 (sm_80)", replace(
    H200.limits, compute_units=108, shared_bytes_opt_in=163 * 1024, wgmma=False, cluster=1),
    "sm_80")
_SM_89 = Hardware("cuda", "a simulated L4 (sm_89)", replace(
    H200.limits, compute_units=58, memory_bytes=2**34, shared_bytes_opt_in=99 * 1024, wgmma=False,
    cluster=1), "sm_89")
_SMALL = Hardware("opencl", "a small GPU through OpenCL", Limits(
    compute_units=4, memory_bytes=2**30, shared_bytes=16 * 1024, shared_bytes_opt_in=16 * 1024,
    work_group_size=128, subgroup_size=1, sure_work_group_size=64))
_PROCESSORS = Hardware("opencl", "processors through OpenCL", Limits(
    compute_units=8, memory_bytes=2**34, shared_bytes=32 * 1024, shared_bytes_opt_in=32 * 1024,
    work_group_size=4096, subgroup_size=1, sure_work_group_size=4096))
DEVICES: Mapping[str, Callable[[], Device]] = {
    "h200": lambda: NamingDevice(H200), "sm_80": lambda: NamingDevice(_SM_80),
    "sm_75": lambda: NamingDevice(SM_75), "sm_89": lambda: NamingDevice(_SM_89),
    "opencl": lambda: NamingDevice(OPENCL), "small": lambda: NamingDevice(_SMALL),
    "processors": lambda: NamingDevice(_PROCESSORS, on_processors=True), "host": _Host}
"""Functions that return a device of each kind."""


def described(value: Any) -> str:
    """Returns a text of what an algorithm prepared: launches, their arguments, and other data."""
    if isinstance(value, Launch):
        buffers = _Named("input"), _Named("output"), _Workspace("workspace")
        arguments = ", ".join(described(argument(*buffers) if callable(argument) else argument)
                              for argument in value.arguments)
        return (f"{described(value.kernel)} {value.work_groups} x {value.work_group_size} "
                f"{value.shared_bytes} ({arguments})")
    if isinstance(value, State):
        return f"{described(value.launches)} {described(value.data)}"
    if isinstance(value, NamedKernel):
        return f"{value.name} {value.text}"
    if isinstance(value, HostBuffer):
        return f"{value.nbytes} bytes {digest(value.bytes)}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(described, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key} {described(each)}' for key, each in value.items())}}}"
    if dataclasses.is_dataclass(value) and not isinstance(value, Problem | Variant):
        fields = (described(getattr(value, field.name)) for field in dataclasses.fields(value))
        return f"{type(value).__name__}({', '.join(fields)})"
    if hasattr(value, "indptr"):
        return described([value.indptr.astype(np.int64), value.indices.astype(np.int64),
                          value.data])
    return as_text(value)


class _Named(Sequence[str]):
    """Buffers of which only the name and the place are known."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getitem__(self, index: Any) -> Any:
        return f"{self._name} {index}"

    def __len__(self) -> int:
        raise TypeError("the number of buffers is not known before a launch")


class _Workspace(str):
    """Scratch memory of which only the name is known."""

    def view(self, offset: int, nbytes: int) -> str:
        return f"{self} {offset} {nbytes}"


def _source_text(source: KernelSource) -> str:
    return digest([source.path.name, source.function, source.defines, source.architectures,
                   source.dynamic_shared])


def listed(algorithm: Algorithm, problem: Problem, variant: Variant, device: Device) -> str:
    """Returns a text of a variant: its config, formats, precision, memory and expected time."""
    specs = (" ".join(map(str, specs)) for specs in (variant.inputs, variant.outputs))
    # nobody asks for the time of what is empty
    us = algorithm.expected_us(problem, variant, device) if variant.outputs[0].size else None
    return (f"{variant.config_text} {' -> '.join(specs)} {variant.precision} {variant.workspace} "
            f"{variant.build_seconds:.4g} {'' if us is None else format(us, '.4g')} "
            f"{algorithm.launch_count(variant)} {algorithm.stated_precision(variant)}")


def one_of_each_form(turn: int, most: int) -> Choose:
    """Returns a function that selects up to `most` variants, with each combination of formats and
    precision in turn; two of variants that take long to build. turn: decides which variants are
    selected."""
    def choose(variants: list[Variant]) -> list[Variant]:
        count = 2 if any(variant.build_seconds for variant in variants) else most
        forms: dict[tuple[object, ...], list[Variant]] = {}
        for variant in variants:
            form = (variant.precision, *(spec.format for spec in
                                         (*variant.inputs[:1], *variant.outputs)))
            forms.setdefault(form, []).append(variant)
        groups = list(forms.values())
        chosen = (groups[(turn + place) % len(groups)] for place in range(count) if groups)
        return list(dict.fromkeys(group[(turn + 5 * place) % len(group)]
                                  for place, group in enumerate(chosen)))

    return choose


def candidates(problem: Problem, arrays: Mapping[str, np.ndarray] | None, device: Device,
               choose: Choose, reasons: dict[str, str], algorithms: Sequence[Algorithm] = ()
               ) -> str:
    """Returns a text of what algorithms offer for a problem on a device.

    For each algorithm the text has its name, the number of its variants, a digest of the variants
    and of their order, and a digest of the prepared states of some variants; or the digest of the
    reason why the algorithm does not compute the problem.

    arrays: the constants; None where nothing is prepared.
    reasons: takes the texts of the reasons by their digests.
    algorithms: the algorithms; by default all of the op but those of vendors' libraries, which may
    be installed or not.
    """
    texts = []
    for algorithm in algorithms or own_algorithms(problem):
        reason = algorithm.supports(problem, device)
        if reason is not None:
            key = digest(reason)[:5]
            assert reasons.setdefault(key, reason) == reason
            texts.append(f"{algorithm.name} {key}")
            continue
        variants = list(algorithm.variants(problem, device))
        texts_of_variants = [listed(algorithm, problem, variant, device) for variant in variants]
        if type(algorithm).variants_in is not Algorithm.variants_in:
            texts_of_variants += [variant.config_text + variant.precision for count in (1, 2, 3)
                                  for variant in algorithm.variants_in(problem, device,
                                                                       PRECISIONS[:count])]
        parts = [algorithm.name, str(len(variants)), digest(texts_of_variants)]
        if arrays is not None:
            weights = Weights(arrays, device, "a layer")
            parts.append(digest([_prepared(algorithm, weights, problem, variant, device)
                                 for variant in choose(variants)]))
        texts.append(" ".join(parts))
    return ", ".join(texts)


def own_algorithms(problem: Problem) -> list[Algorithm]:
    """Returns the algorithms of a problem's op but those of vendors' libraries."""
    return [algorithm for algorithm in op_of(problem).algorithms if not algorithm.vendor]


def _prepared(algorithm: Algorithm, weights: Weights, problem: Problem, variant: Variant,
              device: Device) -> str:
    """Returns a text of the variant, the kernels that the algorithm names for it, and its state."""
    if isinstance(device, NamingDevice):
        device.launched.clear()
    state = algorithm.prepare(weights, problem, variant, device)
    launched = device.launched if isinstance(device, NamingDevice) else []
    named = map(_source_text, algorithm.kernel_sources(problem, variant, device))
    return " ".join([variant.config_text, *named, described(state), *launched])


def recorded(layers: Iterable[tuple[Problem, Mapping[str, np.ndarray] | None]],
             algorithms: Callable[[Problem], Sequence[Algorithm]] = own_algorithms,
             names: Sequence[str] = tuple(DEVICES), most: int = 4, others: int = 2
             ) -> dict[str, str]:
    """Returns what algorithms offer for layers, as texts for a record. Each layer is listed for the
    first device and for some of the others in turn.

    layers: problems with their constants, or with None where nothing is prepared.
    names: the devices, of DEVICES.
    most: the most variants of an algorithm that are prepared; twice as many on the first device.
    others: the number of other devices, 1 or 2.
    """
    first, *further = names
    devices = {name: DEVICES[name]() for name in names}
    reasons: dict[str, str] = {}
    texts: dict[str, str] = {}
    for number, (problem, arrays) in enumerate(layers):
        texts[f"{number}"] = stated(problem)
        in_turn = (further[number % len(further)], further[(2 * number + 1) % len(further)])
        for name in (first, *in_turn[:others]):
            texts[f"{number} {name}"] = candidates(
                problem, arrays, devices[name],
                one_of_each_form(number, 2 * most if name == first else most), reasons,
                algorithms(problem))
    return {**texts, **{f"reason {key}": reason for key, reason in sorted(reasons.items())}}


def supported(problems: Iterable[Problem], names: Sequence[str]) -> dict[str, str]:
    """Returns which algorithms support problems on some of DEVICES, as texts for a record. A text
    has the names of these algorithms, and a digest of the reasons of all others."""
    devices = {name: DEVICES[name]() for name in names}
    texts: dict[str, str] = {}
    for number, problem in enumerate(problems):
        texts[f"{number}"] = stated(problem)
        for name, device in devices.items():
            reasons = {algorithm.name: algorithm.supports(problem, device)
                       for algorithm in own_algorithms(problem)}
            able = [name for name, reason in reasons.items() if reason is None]
            texts[f"{number} {name}"] = f"{digest(reasons)} {', '.join(able)}"
    return texts


def stated(problem: Problem) -> str:
    """Returns a text of what a problem says of itself."""
    fields = " ".join(f"{field.name}={_short(getattr(problem, field.name))}"
                      for field in dataclasses.fields(problem)
                      if getattr(problem, field.name) != field.default)
    first = problem.first_images(2)
    return (f"{problem.describe()}; {fields}; {problem.flops} {problem.least_bytes} "
            f"{problem.exact_precision} {problem.sums_integers} "
            f"{digest([problem.inputs, problem.outputs, problem.weight_shapes])} "
            f"{digest([first.inputs, first.outputs, first.weight_shapes])}")


def _short(value: Any) -> str:
    if isinstance(value, TensorSpec):
        return str(value)
    return digest(value) if dataclasses.is_dataclass(value) else as_text(value)
