"""The weights of a module: which of them have changed, and which the module computes from others.

Changes are found by the identity, the version counter and the address of each tensor in every call,
and by some of its elements in every hundredth call. Weights that the module computes, such as
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

from gossamer.errors import quoted

CALLS = 100
"""Number of calls after which some elements of each weight are compared."""
ELEMENTS = 16
"""About how many elements of each weight are compared."""
_UNUSED_BUFFER = "num_batches_tracked"
"""The name of buffers that no output depends on."""
_HOOKS = (prune.BasePruningMethod, WeightNorm, SpectralNorm)
"""The hooks by which torch.nn.utils computes a weight before each call of forward."""
_address = torch.Tensor.data_ptr


class Weights:
    """The parameters and buffers of a module, apart from those that no output depends on, and those
    without memory of their own, which `optimize` refuses.

    paths: their names.
    without: names of further parameters and buffers that are left out.
    """

    def __init__(self, module: nn.Module, without: Collection[str] = ()) -> None:
        self.paths: list[str] = []
        self._tables: list[dict[str, Any]] = []
        self._names: list[str] = []
        for path, part in module.named_modules():
            for table in (part._parameters, part._buffers):
                for name, tensor in table.items():
                    full = f"{path}.{name}".lstrip(".")
                    if (tensor is not None and name != _UNUSED_BUFFER and full not in without
                            and not is_lazy(tensor) and tensor.layout == torch.strided):
                        self.paths.append(full)
                        self._tables.append(table)
                        self._names.append(name)

    def now(self) -> list[Any]:
        """Return the tensors, in the order of `paths`; None in the place of one that is gone."""
        return list(map(dict.get, self._tables, self._names))

    def watched(self) -> Watch:
        return Watch(self.paths, self.now())


class Watch:
    """Weights as they were when a plan took them.

    A tensor's version counter counts its changes in place. It misses writes through `.data` and by
    the replay of a CUDA graph that trains, and tensors of torch.inference_mode() have none. Such
    changes are found only if they change one of the elements that are compared. A watch keeps the
    tensors alive, but no module.

    paths, tensors: the names of the weights, and the weights.
    """

    def __init__(self, paths: Sequence[str], tensors: Sequence[Any]) -> None:
        self._paths = paths
        self.tensors = tensors
        self._counted = [tensor for tensor in tensors if not tensor.is_inference()]
        self._versions = [tensor._version for tensor in self._counted]
        self._addresses = list(map(_address, tensors))
        self._elements = _elements(tensors)
        self._sample = _sample(self._elements)
        self._calls = 0

    def change(self, now: Sequence[Any]) -> str:
        """Return the first change of the weights, in words for a message; "" where no change is
        found.

        now: the weights of a call.
        """
        if not all(map(is_, now, self.tensors)):
            path = next(path for path, new, old in zip(self._paths, now, self.tensors, strict=True)
                        if new is not old)
            return f"another tensor has taken the place of {quoted(path)}"
        versions = [tensor._version for tensor in self._counted]
        if versions != self._versions:
            return self._changed(self._counted, versions, self._versions)
        addresses = list(map(_address, now))
        if addresses != self._addresses:
            return self._changed(now, addresses, self._addresses)
        self._calls += 1
        if self._calls >= CALLS and not _captures(now):
            if not all(map(torch.equal, _sample(self._elements), self._sample)):
                return "weights were written without a change of their version counters"
            self._calls = 0
        return ""

    def _changed(self, tensors: Sequence[Any], now: Sequence[int], before: Sequence[int]) -> str:
        tensor = tensors[list(map(ne, now, before)).index(True)]
        path = next(path for path, each in zip(self._paths, self.tensors, strict=True)
                    if each is tensor)
        return f"{quoted(path)} was changed in place"


def _elements(tensors: Sequence[Any]) -> list[list[Any]]:
    """Return views of elements of each tensor, at equal distances in memory, as one list for each
    device and dtype."""
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
    """Return the bytes of elements of tensors, for each device and dtype."""
    with torch.no_grad():
        return [torch.cat(list(each)).view(torch.uint8) for each in elements]


def _captures(tensors: Sequence[Any]) -> bool:
    """Whether the current stream records a CUDA graph, during which no number can be read."""
    return any(tensor.is_cuda for tensor in tensors) and torch.cuda.is_current_stream_capturing()


def folded(module: nn.Module) -> nn.Module:
    """Return a copy of a module in which weights that torch.nn.utils.prune, weight_norm,
    spectral_norm and parametrisations compute are plain weights; the module itself where it has no
    such weights."""
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
    """Replace the parametrisations of a copied module by the weights that they compute. torch's
    own function would also change the class, which the copy shares with the original module."""
    weights = {name: getattr(part, name).detach().clone() for name in part.parametrizations}
    del part._modules["parametrizations"]
    part.__class__ = type(part).__bases__[0]
    for name, weight in weights.items():
        part.register_parameter(name, nn.Parameter(weight, requires_grad=False))


def without_bfloat16(module: nn.Module) -> nn.Module:
    """Return the module, or a copy in float32 where the module has parameters in bfloat16, since
    networks are computed in float32 and float16 only."""
    if all(tensor.dtype != torch.bfloat16 for tensor in module.parameters()):
        return module
    return copy.deepcopy(module).float()


def _computes_weights(part: nn.Module) -> bool:
    return parametrize.is_parametrized(part) or any(
        isinstance(hook, _HOOKS) for hook in part._forward_pre_hooks.values())


def _recompute(module: nn.Module) -> None:
    """Make the hooks compute their weights while torch records no gradients, because deepcopy
    refuses tensors that were computed with gradients."""
    inputs: Any = ()
    for part in module.modules():
        for hook in part._forward_pre_hooks.values():
            if isinstance(hook, _HOOKS):
                hook(part, inputs)
