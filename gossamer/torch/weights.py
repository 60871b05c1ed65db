"""Detection of changed weights and layers, and folding of computed weights.

Each call compares the identity, version counter and address of each tensor; every hundredth call
also compares some of its elements. Weights that the module computes from other weights, such as
pruned, normalised and parametrised ones, become constants.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Collection, Sequence
from operator import is_, ne
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize, prune
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from gossamer.errors import InputError, quoted

CALLS = 100
"""Number of calls between comparisons of some elements of each weight."""
ELEMENTS = 16
"""Approximate number of elements of each weight that are compared."""
_HOOKS = (prune.BasePruningMethod, WeightNorm, SpectralNorm)
"""Hooks of torch.nn.utils that compute a weight before each call of forward."""
_address = torch.Tensor.data_ptr


class Weights:
    """The parameters and buffers of a module, and its layers.

    Parameters and buffers that are None are included, because they may be set later. So are batch
    norm's counts of batches: unlike its statistics, they have version counters that count training.
    Lazy and sparse tensors are excluded, because `optimize` raises errors for them.

    paths: the names of the parameters and buffers.
    without: names of parameters and buffers to exclude.
    """

    def __init__(self, module: nn.Module, without: Collection[str] = ()) -> None:
        self.paths: list[str] = []
        self._tables: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._layers = {path: part._modules for path, part in module.named_modules()
                        if part._modules}
        self._first_layers = {path: dict(layers) for path, layers in self._layers.items()}
        for path, part in module.named_modules():
            for table in (part._parameters, part._buffers):
                for name, tensor in table.items():
                    full = f"{path}.{name}".lstrip(".")
                    if full not in without and (tensor is None or (
                            not is_lazy(tensor) and tensor.layout == torch.strided)):
                        self.paths.append(full)
                        self._tables.append(table)
                        self._names.append(name)

    def now(self) -> list[Any]:
        """Return the current tensors in the order of `paths`; None for a deleted one."""
        return list(map(dict.get, self._tables, self._names))

    def check_layers(self) -> None:
        """Raise InputError if a layer was added, replaced or removed.

        Layers that torch adds to compute weights are no change: the weights change with them.
        """
        if self._layers == self._first_layers:
            return
        for path, layers in self._layers.items():
            first = self._first_layers[path]
            for name in {**first, **layers}:
                if name != "parametrizations" and layers.get(name) is not first.get(name):
                    what = "added" if name not in first else (
                        "replaced" if name in layers else "removed")
                    raise InputError(f"layer {quoted(f'{path}.{name}'.lstrip('.'))} of the module "
                                     f"was {what} after the module was optimised; optimise it "
                                     "again, call update(module) if only weights differ, or pass "
                                     "follow=False to go on with the old weights")

    def watched(self) -> Watch:
        return Watch(self.paths, self.now())


class Watch:
    """Detects changes of weights since a plan read them.

    A tensor's version counter counts writes in place, but misses writes through `.data`, and writes
    by a CUDA graph that trains. Tensors of torch.inference_mode() have no version counter.
    Writes that no counter counts are detected only if they change one of the compared elements. A
    watch keeps the tensors alive, but not the module.

    paths, weights: the names of the weights, and the weights: tensors, or None.
    """

    def __init__(self, paths: Sequence[str], weights: Sequence[Any]) -> None:
        self._paths = paths
        self.weights = weights
        self._tensors = [tensor for tensor in weights if tensor is not None]
        self._counted = [tensor for tensor in self._tensors if not tensor.is_inference()]
        self._versions = [tensor._version for tensor in self._counted]
        self._addresses = list(map(_address, self._tensors))
        self._elements = _elements(self._tensors)
        self._sample = _sample(self._elements)
        self._calls = 0

    def change(self, now: Sequence[Any]) -> str:
        """Return text about the first change of the weights; "" without a change.

        now: the weights of a call.
        """
        if not all(map(is_, now, self.weights)):
            path = next(path for path, new, old in zip(self._paths, now, self.weights, strict=True)
                        if new is not old)
            return f"{quoted(path)} was replaced by another tensor"
        versions = [tensor._version for tensor in self._counted]
        if versions != self._versions:
            return self._changed(self._counted, versions, self._versions)
        addresses = list(map(_address, self._tensors))
        if addresses != self._addresses:
            return self._changed(self._tensors, addresses, self._addresses)
        self._calls += 1
        if self._calls >= CALLS and not _captures(self._tensors):
            if not all(map(torch.equal, _sample(self._elements), self._sample)):
                return "weights were written without a change of their version counters"
            self._calls = 0
        return ""

    def _changed(self, tensors: Sequence[Any], now: Sequence[int], before: Sequence[int]) -> str:
        tensor = tensors[list(map(ne, now, before)).index(True)]
        path = next(path for path, each in zip(self._paths, self.weights, strict=True)
                    if each is tensor)
        return f"{quoted(path)} was changed in place"


def _elements(tensors: Sequence[Any]) -> list[list[Any]]:
    """Return strided views of some elements of each tensor.

    There is one list of views for each device and dtype.
    """
    found: dict[Any, list[Any]] = defaultdict(list)
    for tensor in tensors:
        if tensor.layout == torch.strided and tensor.numel():
            last = sum((size - 1) * stride for size, stride in zip(
                tensor.shape, tensor.stride(), strict=True))
            step = max(last // ELEMENTS, 1)
            found[tensor.device, tensor.dtype].append(torch.as_strided(
                tensor.detach(), (last // step + 1,), (step,), tensor.storage_offset()))
    return list(found.values())


def _sample(elements: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the bytes of the elements for each device and dtype."""
    with torch.no_grad():
        return [torch.cat(list(each)).view(torch.uint8) for each in elements]


def _captures(tensors: Sequence[Any]) -> bool:
    """Return whether a CUDA graph capture forbids reading values."""
    return any(tensor.is_cuda for tensor in tensors) and torch.cuda.is_current_stream_capturing()


def folded(module: nn.Module) -> nn.Module:
    """Return a copy of a module, with plain parameters instead of computed weights.

    Computed weights are those that torch.nn.utils.prune, weight_norm, spectral_norm and
    parametrisations compute. If the module has none, the module itself is returned.
    """
    if not any(_computes_weights(part) for part in module.modules()):
        return module
    with torch.no_grad():
        _recompute(module)
        result = copy.deepcopy(module)
        for part in list(result.modules()):
            if parametrize.is_parametrized(part):
                _remove_parametrizations(part)
            for key, hook in list(part._forward_pre_hooks.items()):
                if isinstance(hook, _HOOKS):
                    hook.remove(part)
                    del part._forward_pre_hooks[key]
    return result


def _remove_parametrizations(part: nn.Module) -> None:
    """Replace the parametrisations of a copied module by their computed weights.

    torch's own function would also change the class, which the copy shares with the original.
    """
    weights = {name: getattr(part, name).detach().clone() for name in part.parametrizations}
    del part._modules["parametrizations"]
    part.__class__ = type(part).__bases__[0]
    for name, weight in weights.items():
        part.register_parameter(name, nn.Parameter(weight, requires_grad=False))


def without_bfloat16(module: nn.Module) -> nn.Module:
    """Return the module, or a float32 copy if it has bfloat16 parameters.

    Networks are computed only in float32 and float16.
    """
    if all(tensor.dtype != torch.bfloat16 for tensor in module.parameters()):
        return module
    return copy.deepcopy(module).float()


def _computes_weights(part: nn.Module) -> bool:
    return parametrize.is_parametrized(part) or any(
        isinstance(hook, _HOOKS) for hook in part._forward_pre_hooks.values())


def _recompute(module: nn.Module) -> None:
    """Recompute, without gradients, the weights that hooks compute.

    deepcopy does not support tensors that were computed with gradients.
    """
    inputs: Any = ()
    for part in module.modules():
        for hook in part._forward_pre_hooks.values():
            if isinstance(hook, _HOOKS):
                hook(part, inputs)
