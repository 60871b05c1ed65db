"""Captures a module as a network, together with the module's outputs for an example."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._dynamo import convert_frame
from torch.utils import _pytree as pytree

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import InputError, UnsupportedError, quoted
from gossamer.model.input_format import InputFormat
from gossamer.torch.call_form import InputForm, OutputForm
from gossamer.torch.checks import check_inputs, check_kind, check_module, device_of
from gossamer.torch.comparison import as_array
from gossamer.torch.effects import random_numbers_restored
from gossamer.torch.exported import Exported, exported
from gossamer.torch.folded import folded, without_bfloat16
from gossamer.torch.watch import Watch, Weights

Formats = InputFormat | Mapping[str, InputFormat] | None
_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
"""The names of the dtypes for which _formats_of() can return a format."""


@dataclass
class Captured:
    """A module as a network, with its outputs for an example.

    original: the module that the caller gave.
    weights, watch: its weights, and a watch from before they were read.
    module: the module with folded weights, in float32 where the original is in bfloat16.
    network: the network of the module.
    inputs, outputs: how the module's arguments and outputs hold tensors.
    given: the tensors of the example.
    tensors: the tensors of the example in the formats that `module` accepts.
    eager: the distinct tensors that the module returned for the example.
    formats: the formats in which the plan accepts inputs, by the inputs' names.
    explicit: whether the caller gave the formats.
    """

    original: nn.Module
    weights: Weights
    watch: Watch
    module: nn.Module
    network: Exported
    inputs: InputForm
    outputs: OutputForm
    given: list[Any]
    tensors: list[Any]
    eager: tuple[Any, ...]
    formats: dict[str, InputFormat]
    explicit: bool

    def call(self, module: nn.Module, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Calls a module whose arguments and outputs have the structure of the captured module's,
        and returns the distinct output tensors."""
        return self.outputs.distinct(called(module, self.inputs, tensors))

    @property
    def precision(self) -> str:
        """The precision of the module itself: "fp16" for float16 and bfloat16, else "fp32"."""
        short = any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in self.eager)
        return "fp16" if short else "fp32"


def captured(module: Any, example: Any, formats: Formats, writes: bool = True) -> Captured:
    """Returns a module as a network. Raises InputError and UnsupportedError as `optimize` does.

    writes: whether forward may write its inputs and buffers, so that it runs on copies. The state
    of the random generators is restored in any case.
    """
    # torch traces in one thread at a time, and Dynamo in other threads takes the same lock
    with convert_frame.compile_lock, random_numbers_restored(pytree.tree_leaves(example)):
        return _captured(module, example, formats, writes)


def _captured(module: Any, example: Any, formats: Formats, writes: bool) -> Captured:
    if example is None and isinstance(module, torch.export.ExportedProgram) and (
            module.example_inputs is not None):
        args, kwargs = module.example_inputs
    else:
        args, kwargs = _arguments(example)
    module = module_of(module)
    check_kind(module)
    weights = Weights(module)
    watch = weights.watched()
    ready = folded(module)
    check_module(ready)
    inputs = InputForm(ready.forward, args, kwargs)
    given = inputs.tensors
    check_inputs(inputs.names, given, device_of(ready))
    asked = _by_name(formats, inputs.names)
    tensors = [_as_module_takes(tensor, asked[name]) if name in asked else
               tensor.detach().clone() if writes else tensor.detach()
               for name, tensor in zip(inputs.names, given, strict=True)]
    if writes and ready is module:
        ready = _copy(module)
    eager = called(ready, inputs, tensors)
    outputs = OutputForm(eager, tensors)
    if not outputs.count:
        raise InputError(f"{type(module).__name__} returns no tensor that it computes")
    formats = asked or _formats_of(inputs.names, tensors)
    tensors = [tensor.float() if tensor.dtype == torch.bfloat16 else tensor for tensor in tensors]
    ready = without_bfloat16(ready)
    with without_modes(tensors):
        network = exported(ready, inputs, outputs, tensors)
    return Captured(module, weights, watch, ready, network, inputs, outputs, given, tensors,
                    outputs.distinct(eager), formats, bool(asked))


def _copy(module: nn.Module) -> nn.Module:
    """Returns a copy of a module; the module itself where it cannot be copied."""
    try:
        return copy.deepcopy(module)
    except Exception:  # whatever a module holds, such as locks and files
        return module


def module_of(program: Any) -> Any:
    """Returns an exported program as a module that also accepts other sizes than the sizes of its
    example. Any other object is returned as it is."""
    if not isinstance(program, torch.export.ExportedProgram):
        return program
    options = {"check_guards": False}
    if "check_guards" not in inspect.signature(program.module).parameters:
        options = {}
    module: nn.Module = program.module(**options)
    module._forward_pre_hooks.clear()
    module._forward_hooks.clear()
    return module


def called(module: nn.Module, inputs: InputForm, tensors: Sequence[Any]) -> Any:
    """Returns the result of a module, without gradients and without autocast."""
    args, kwargs = inputs.arguments(tensors)
    with without_modes(tensors):
        return module(*args, **kwargs)


@contextmanager
def without_modes(tensors: Sequence[Any]) -> Iterator[None]:
    """Turns gradients and autocast off."""
    with torch.no_grad(), torch.autocast(tensors[0].device.type, enabled=False):
        yield


def place(captured: Captured, device: str | Device | None) -> Device:
    """Returns the device of the plan, by default the device that holds the module. Raises
    InputError where the module is on a GPU and the plan is for another device."""
    tensor = captured.tensors[0]
    home = tensor.device
    if home.type not in ("cpu", "cuda"):
        raise UnsupportedError(f"the module is on {home}; gossamer computes modules on the "
                               "processor and on CUDA devices")
    if device is None:
        return find("host" if home.type == "cpu" else f"cuda:{home.index or 0}")
    result = device if isinstance(device, Device) else find(device)
    if home.type == "cuda" and not result.holds(tensor):
        raise InputError(f"the module is on {home}, and device= names {result.name}; leave it "
                         "out, or move the module")
    return result


def _arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if example is None:
        raise InputError("example_inputs is missing: give a tensor, a tuple of the arguments, or "
                         "a dict of arguments by their names")
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, (tuple, list)) and not hasattr(example, "_fields"):
        return tuple(example), {}
    return (example,), {}


def _by_name(formats: Formats, names: Sequence[str]) -> dict[str, InputFormat]:
    if formats is None:
        return {}
    if isinstance(formats, InputFormat) and len(names) == 1:
        return {names[0]: formats}
    if not isinstance(formats, Mapping):
        raise InputError(f"inputs {quoted(formats)}: expected an InputFormat, or for several "
                         "inputs a mapping of their names to InputFormats")
    for name in formats:
        if name not in names:
            raise InputError(f"inputs: the module has no input {quoted(name)}; its inputs: "
                             f"{', '.join(names)}")
    return dict(formats)


def _as_module_takes(tensor: Any, format_: InputFormat) -> Any:
    return torch.from_numpy(format_.as_network_takes(as_array(tensor))).to(tensor.device)


def _formats_of(names: Sequence[str], tensors: Sequence[Any]) -> dict[str, InputFormat]:
    """Returns the formats, by name, of the tensors that are not float32 in NCHW."""
    formats = {name: InputFormat(_DTYPES[tensor.dtype],
                                 "NHWC" if is_channels_last(tensor) else "NCHW")
               for name, tensor in zip(names, tensors, strict=True) if tensor.dtype in _DTYPES}
    return {name: format_ for name, format_ in formats.items() if not format_.is_default}


def is_channels_last(tensor: Any) -> bool:
    """Whether a tensor of images lies in memory in NHWC, and not also in NCHW."""
    return (tensor.dim() == 4 and not tensor.is_contiguous()
            and tensor.is_contiguous(memory_format=torch.channels_last))
