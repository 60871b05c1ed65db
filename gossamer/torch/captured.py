"""Converts a module to a network, and computes its outputs for an example.

Modules and tensors that cannot be optimised raise errors that say what to do.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._dynamo import convert_frame
from torch.nn.modules.lazy import LazyModuleMixin
from torch.utils import _pytree as pytree

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import InputError, UnsupportedError, kind_of, quoted
from gossamer.model.input_format import InputFormat
from gossamer.torch.call_form import InputForm, OutputForm
from gossamer.torch.effects import random_numbers_restored
from gossamer.torch.exported import Exported, batch_of, exported, plain_module
from gossamer.torch.weights import Watch, Weights, folded, without_bfloat16

Formats = InputFormat | Mapping[str, InputFormat] | None
_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
"""Names of the dtypes for which _formats_of() can return a format."""
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_RANDOM_IN_TRAINING = (nn.modules.batchnorm._BatchNorm, nn.RReLU)
_STATIC = ("the program was exported for one batch size; export it with "
           "dynamic_shapes={0: torch.export.Dim('batch')} of its inputs")
_PLAIN = (torch.Tensor, nn.Parameter, nn.Buffer)


@dataclass
class Captured:
    """A module converted to a network, with its outputs for an example.

    original: the caller's module.
    weights, watch: the module's weights, and a Watch that was created before the weights were read.
    module: the module with computed weights as constants (see folded()), in float32 if the original
    is in bfloat16.
    network: the network of the module.
    inputs, outputs: the nesting of tensors in the module's arguments and outputs.
    given: the tensors of the example.
    tensors: the tensors of the example in the formats that `module` accepts.
    eager: the distinct tensors that the module returned for the example.
    formats: the input formats of the plan, by the inputs' names.
    explicit: whether the caller specified the formats.
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
        """Call a module and return its distinct output tensors.

        The module's arguments and outputs must be nested like those of the captured module.
        """
        return self.outputs.distinct(called(module, self.inputs, tensors))

    @property
    def precision(self) -> str:
        """The precision of the module itself: "fp16" for float16 and bfloat16, else "fp32"."""
        short = any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in self.eager)
        return "fp16" if short else "fp32"


def captured(module: Any, example: Any, formats: Formats, writes: bool = True) -> Captured:
    """Convert a module to a network, and compute its outputs for an example.

    The state of the random generators is restored. Raises InputError and UnsupportedError as
    `optimize` does.

    writes: whether forward may write its inputs and buffers; if so, forward runs on copies.
    """
    # torch traces in one thread at a time; Dynamo uses the same lock in other threads
    with convert_frame.compile_lock, random_numbers_restored(pytree.tree_leaves(example)):
        return _captured(module, example, formats, writes)


def _captured(module: Any, example: Any, formats: Formats, writes: bool) -> Captured:
    program, module = module, module_of(module)
    check_kind(module)
    if example is None and isinstance(program, torch.export.ExportedProgram) and (
            program.example_inputs is not None):
        args, kwargs = program.example_inputs
    else:
        args, kwargs = _arguments(example)
    weights = Weights(module)
    watch = weights.watched()
    ready = folded(module)
    check_module(ready)
    inputs = InputForm(ready.forward, args, kwargs)
    given = inputs.tensors
    check_inputs(inputs.names, given, device_of(ready))
    asked = _by_name(formats, inputs.names)
    dtype = _dtype_of(ready)
    tensors = [_as_module_takes(tensor, asked[name], dtype) if name in asked else
               tensor.detach().clone() if writes else tensor.detach()
               for name, tensor in zip(inputs.names, given, strict=True)]
    fixed = _static_batch(program, inputs.names, tensors)
    if writes and ready is module:
        ready = _copy(module)
    eager = called(ready, inputs, tensors)
    outputs = OutputForm(eager, tensors)
    if not outputs.count:
        raise InputError(f"{type(module).__name__} returns no computed tensor; give a module whose "
                         "forward returns at least one")
    formats = asked or _formats_of(inputs.names, tensors)
    tensors = [tensor.float() if tensor.dtype == torch.bfloat16 else tensor for tensor in tensors]
    ready = without_bfloat16(ready)
    with without_modes(tensors):
        network = exported(ready, inputs, outputs, tensors, fixed)
    return Captured(module, weights, watch, ready, network, inputs, outputs, given, tensors,
                    outputs.distinct(eager), formats, bool(asked))


def _copy(module: nn.Module) -> nn.Module:
    """Return a module's copy, or the module if copying fails."""
    try:
        return copy.deepcopy(module)
    except Exception:  # a module may hold anything, such as locks and files
        return module


def module_of(program: Any) -> Any:
    """Return the module of an exported program.

    The module does not run the program's guards, because `_static_batch` checks the sizes. An
    object that is not an exported program is returned unchanged.
    """
    if not isinstance(program, torch.export.ExportedProgram):
        return program
    return plain_module(program)


def _static_batch(program: Any, names: Sequence[str], tensors: Sequence[Any]) -> str:
    """Return why an exported program fixes the batch size; "" if it does not, and for a module.

    Sizes that are not dynamic may have become constants anywhere in the program. Raises InputError
    if the example has other sizes than these.
    """
    if not isinstance(program, torch.export.ExportedProgram):
        return ""
    given = program.graph_signature.user_inputs
    shapes = [value.shape for node in program.graph.nodes
              if node.op == "placeholder" and node.name in given
              and isinstance(value := node.meta.get("val"), torch.Tensor)]
    for name, shape, tensor in zip(names, shapes, tensors, strict=True):
        if len(shape) != tensor.dim() or any(isinstance(size, int) and size != length for
                                             size, length in zip(shape, tensor.shape, strict=True)):
            raise InputError(f"input {quoted(name)} has shape {tuple(tensor.shape)}, but the "
                             f"program was exported for {tuple(shape)}; export it for this shape, "
                             "or with dynamic_shapes=")
    batch = batch_of(tensors)
    is_static = any(isinstance(shape[0], int) for shape, tensor in zip(shapes, tensors, strict=True)
                    if shape and tensor.shape[0] == batch)
    return _STATIC if is_static else ""


def called(module: nn.Module, inputs: InputForm, tensors: Sequence[Any]) -> Any:
    """Return the result of a module, without gradients and without autocast."""
    args, kwargs = inputs.arguments(tensors)
    with without_modes(tensors):
        return module(*args, **kwargs)


@contextmanager
def without_modes(tensors: Sequence[Any]) -> Iterator[None]:
    """Turn gradients and autocast off."""
    with torch.no_grad(), torch.autocast(tensors[0].device.type, enabled=False):
        yield


def plan_device(captured: Captured, device: str | Device | None) -> Device:
    """Return the plan's device; by default the module's device.

    Raises InputError if the module is on a GPU and the plan is for another device.
    """
    tensor = captured.tensors[0]
    home = tensor.device
    if home.type not in ("cpu", "cuda"):
        raise UnsupportedError(f"the module is on {home}; gossamer computes modules on the "
                               "processor and on CUDA devices")
    if device is None:
        return find("host" if home.type == "cpu" else f"cuda:{home.index or 0}")
    result = device if isinstance(device, Device) else find(device)
    if home.type == "cuda" and not result.holds(tensor):
        raise InputError(f"the module is on {home}, but device= names {result.name}; omit device, "
                         "or move the module")
    return result


def _arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if example is None:
        raise InputError("example_inputs is missing: give a tensor, a tuple of the arguments, or "
                         "a dict of arguments by name")
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
        raise InputError(f"inputs {quoted(formats)}: expected an InputFormat or, for several "
                         "inputs, a mapping from their names to InputFormats")
    for name, format_ in formats.items():
        if name not in names:
            raise InputError(f"inputs: the module has no input {quoted(name)}; its inputs: "
                             f"{', '.join(names)}")
        if not isinstance(format_, InputFormat):
            raise InputError(f"inputs: the format of {quoted(name)} is {quoted(format_)}, expected "
                             "an InputFormat, such as InputFormat('uint8', 'NHWC')")
    return dict(formats)


def _as_module_takes(tensor: Any, format_: InputFormat, dtype: torch.dtype) -> Any:
    return torch.from_numpy(format_.as_network_takes(as_array(tensor))).to(tensor.device, dtype)


def _dtype_of(module: nn.Module) -> torch.dtype:
    """Return the dtype of a module's weights; float32 if it has no weights."""
    return next((tensor.dtype for tensor in module.parameters() if tensor.is_floating_point()),
                torch.float32)


def _formats_of(names: Sequence[str], tensors: Sequence[Any]) -> dict[str, InputFormat]:
    """Return the formats, by name, of the tensors that are not float32 in NCHW."""
    formats = {name: InputFormat(_DTYPES[tensor.dtype],
                                 "NHWC" if is_channels_last(tensor) else "NCHW")
               for name, tensor in zip(names, tensors, strict=True) if tensor.dtype in _DTYPES}
    return {name: format_ for name, format_ in formats.items() if not format_.is_default}


def is_channels_last(tensor: Any) -> bool:
    """Return whether a tensor is contiguous in NHWC order, but not in NCHW order."""
    return (tensor.dim() == 4 and not tensor.is_contiguous()
            and tensor.is_contiguous(memory_format=torch.channels_last))


def as_array(tensor: Any) -> np.ndarray:
    """Return a tensor as a NumPy array, bfloat16 as float32."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return np.asarray(tensor.numpy())


def check_kind(module: Any) -> None:
    """Raise InputError if an object is not a module that torch.export accepts."""
    if isinstance(module, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        raise InputError(f"{_name(module)} is a module of torch.jit, which torch.export does not "
                         "accept; give the nn.Module from which it was made")
    if not isinstance(module, nn.Module):
        raise InputError(f"{kind_of(module)} is not a torch.nn.Module; give a module, or a "
                         "torch.export.ExportedProgram")


def check_module(module: nn.Module) -> None:
    """Raise InputError or UnsupportedError if a module cannot be optimised."""
    for path, part in module.named_modules():
        if isinstance(part, LazyModuleMixin) and part.has_uninitialized_params():  # type: ignore[misc]
            raise InputError(f"{_at(path, part)} is lazy: its weights are created by the first "
                             "call; call the module once")
        if part.training and _is_random(part):
            raise InputError(f"{_at(path, part)} is in training mode; call module.eval() first")
        if part._forward_hooks or part._forward_pre_hooks:
            raise InputError(f"{_at(path, part)} has a forward hook, which optimised modules do "
                             "not call; remove it by the handle that register_forward_hook "
                             "returned")
    check_tensors(_weights(module))


def check_tensors(tensors: Sequence[tuple[str, Any]]) -> None:
    """Raise InputError or UnsupportedError if weights cannot be read.

    tensors: pairs of a weight's name and the weight.
    """
    devices: dict[Any, str] = {}
    for name, tensor in tensors:
        _check_kind(name, tensor)
        devices.setdefault(tensor.device, name)
    if len(devices) > 1:
        (one, first), (two, second) = list(devices.items())[:2]
        raise InputError(f"{first} is on {one} and {second} on {two}; move the module to one "
                         f"device: module.to({str(one)!r})")


def check_inputs(names: Sequence[str], tensors: Sequence[Any], where: Any) -> None:
    """Raise InputError or UnsupportedError if an example's tensors cannot be inputs.

    where: the device of the module's weights; None if the module has no weights.
    """
    if not tensors:
        raise InputError("the example has no torch.Tensor; give one for each input of the module, "
                         "such as torch.from_numpy(array) for a NumPy array")
    for name, tensor in zip(names, tensors, strict=True):
        _check_kind(f"input {quoted(name)}", tensor)
        if tensor.dim() and not tensor.shape[0]:
            raise InputError(f"input {quoted(name)} has batch 0; give an example of at least one "
                             "image: the optimised module accepts any batch size")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise gradient_error(name)
        if where is not None and tensor.device != where:
            raise InputError(f"input {quoted(name)} is on {tensor.device}, but the module is on "
                             f"{where}; move the input: x.to({str(where)!r})")


def gradient_error(name: str) -> InputError:
    """Return the error for an input that requires a gradient."""
    return InputError(f"input {quoted(name)} requires a gradient, which an optimised module does "
                      "not compute; give x.detach(), or call it within torch.no_grad()")


def device_of(module: nn.Module) -> Any:
    """Return the device of a module's weights; None if it has no weights."""
    return next((tensor.device for _, tensor in _weights(module)), None)


def _check_kind(name: str, tensor: Any) -> None:
    if tensor.is_meta:
        raise InputError(f"{name} is on the meta device and holds no numbers; make the module on "
                         "a device, and load its weights")
    if tensor.is_nested:
        raise UnsupportedError(f"{name} is a nested tensor; make it dense by "
                               "tensor.to_padded_tensor(0.0)")
    if tensor.layout != torch.strided:
        raise UnsupportedError(f"{name} is a tensor of layout {tensor.layout}; make it dense by "
                               "tensor.to_dense(): gossamer finds its zeros")
    if type(tensor) not in _PLAIN:
        raise UnsupportedError(f"{name} is {kind_of(tensor)}, a subclass of torch.Tensor; "
                               "convert it to a plain tensor, such as by tensor.to_dense() or "
                               "tensor.dequantize()")
    if tensor.is_complex():
        raise UnsupportedError(f"{name} is complex ({tensor.dtype}); give its real and imaginary "
                               "parts: torch.view_as_real(x)")
    if tensor.is_floating_point() and tensor.dtype not in _FLOATS:
        raise UnsupportedError(f"{name} is {tensor.dtype}, but gossamer computes in float32 or "
                               "float16: call module.float(), and give float32 inputs")


def _is_random(part: nn.Module) -> bool:
    """Return whether a module computes differently in training mode."""
    if isinstance(part, nn.modules.dropout._DropoutNd):
        return part.p > 0
    if isinstance(part, nn.RNNBase | nn.MultiheadAttention):
        return part.dropout > 0
    return isinstance(part, _RANDOM_IN_TRAINING)


def _weights(module: nn.Module) -> list[tuple[str, Any]]:
    """Return a module's parameters and buffers with display names."""
    return [*((f"parameter {quoted(name)}", tensor) for name, tensor in module.named_parameters()),
            *((f"buffer {quoted(name)}", tensor) for name, tensor in module.named_buffers())]


def _name(module: Any) -> str:
    return str(getattr(module, "original_name", type(module).__name__))


def _at(path: str, part: nn.Module) -> str:
    return f"{type(part).__name__} {quoted(path)}" if path else f"the {type(part).__name__}"
