"""Checks for modules and tensors that cannot be optimised; each error says what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from gossamer.errors import InputError, UnsupportedError, quoted

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_RANDOM_IN_TRAINING = (nn.modules.batchnorm._BatchNorm, nn.RReLU)
_PLAIN = (torch.Tensor, nn.Parameter, getattr(nn, "Buffer", nn.Parameter))


def check_kind(module: Any) -> None:
    """Raises InputError where an object is no module that torch.export accepts."""
    if isinstance(module, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        raise InputError(f"{_name(module)} is a module of torch.jit, which torch.export does not "
                         "take; give the nn.Module from which it was made")
    if not isinstance(module, nn.Module):
        raise InputError(f"a {type(module).__name__} is no torch.nn.Module; give a module, or a "
                         "torch.export.ExportedProgram")


def check_module(module: nn.Module) -> None:
    """Raises InputError or UnsupportedError where a module cannot be optimised as it is."""
    for path, part in module.named_modules():
        if isinstance(part, LazyModuleMixin) and part.has_uninitialized_params():  # type: ignore[misc]
            raise InputError(f"{_at(path, part)} gets its weights in its first call; call the "
                             "module once")
        if part.training and _is_random(part):
            raise InputError(f"{_at(path, part)} is in training mode; call module.eval() first")
        if part._forward_hooks or part._forward_pre_hooks:
            raise InputError(f"{_at(path, part)} has a forward hook, which no optimised module "
                             "calls; remove it by the handle that register_forward_hook returned")
    check_tensors(_weights(module))


def check_tensors(tensors: Sequence[tuple[str, Any]]) -> None:
    """Raises InputError or UnsupportedError where weights cannot be read.

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
    """Raises InputError or UnsupportedError where the tensors of an example cannot be inputs.

    where: the device of the module's weights; None where the module has no weights.
    """
    if not tensors:
        raise InputError("the example has no torch.Tensor; give one for each input of the module, "
                         "of a NumPy array torch.from_numpy(array)")
    for name, tensor in zip(names, tensors, strict=True):
        _check_kind(f"input {quoted(name)}", tensor)
        if tensor.dim() and not tensor.shape[0]:
            raise InputError(f"input {quoted(name)} has batch 0; give an example of one image or "
                             "more: the optimised module takes any batch size")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise gradient_error(name)
        if where is not None and tensor.device != where:
            raise InputError(f"input {quoted(name)} is on {tensor.device}, the module on {where}; "
                             f"move it: x.to({str(where)!r})")


def gradient_error(name: str) -> InputError:
    """Returns the error for an input that requires a gradient."""
    return InputError(f"input {quoted(name)} requires a gradient, which an optimised module does "
                      "not compute; give x.detach(), or call it within torch.no_grad()")


def device_of(module: nn.Module) -> Any:
    """Returns the device of a module's weights; None where the module has no weights."""
    return next((tensor.device for _, tensor in _weights(module)), None)


def _check_kind(name: str, tensor: Any) -> None:
    if tensor.is_meta:
        raise InputError(f"{name} is on the meta device and holds no numbers; make the module on "
                         "a device, and load its weights")
    if tensor.layout != torch.strided:
        raise UnsupportedError(f"{name} is a tensor of layout {tensor.layout}; make it dense, "
                               "zeros are found in it: tensor.to_dense()")
    if type(tensor) not in _PLAIN:
        raise UnsupportedError(f"{name} is a {type(tensor).__name__}, a kind of tensor of its own; "
                               "give a module whose weights are plain tensors, such as "
                               "tensor.to_dense() or tensor.dequantize() returns")
    if tensor.is_complex():
        raise UnsupportedError(f"{name} is complex, {tensor.dtype}; give its real and imaginary "
                               "parts: torch.view_as_real(x)")
    if tensor.is_floating_point() and tensor.dtype not in _FLOATS:
        raise UnsupportedError(f"{name} is {tensor.dtype}; numbers are computed in float32 or "
                               "float16: call module.float(), and give inputs of that dtype")


def _is_random(part: nn.Module) -> bool:
    """Whether a module computes something else in training mode than in evaluation mode."""
    if isinstance(part, nn.modules.dropout._DropoutNd):
        return part.p > 0
    if isinstance(part, nn.RNNBase | nn.MultiheadAttention):
        return part.dropout > 0
    return isinstance(part, _RANDOM_IN_TRAINING)


def _weights(module: nn.Module) -> list[tuple[str, Any]]:
    return list(_named(module))


def _named(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, tensor in module.named_parameters():
        yield f"parameter {quoted(name)}", tensor
    for name, tensor in module.named_buffers():
        yield f"buffer {quoted(name)}", tensor


def _name(module: Any) -> str:
    return str(getattr(module, "original_name", type(module).__name__))


def _at(path: str, part: nn.Module) -> str:
    return f"{type(part).__name__} {quoted(path)}" if path else f"the {type(part).__name__}"
