"""Finds changes of a module's weights: by identity, version counter and address of each tensor on
every call, and by some of its elements now and then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from operator import is_, ne
from typing import Any

import torch
from torch import nn

from gossamer.errors import quoted

CALLS = 100
"""Number of calls after which some elements of each weight are compared."""
ELEMENTS = 16
"""About how many elements of each weight are compared."""
_NOT_COUNTED = "num_batches_tracked"
"""The name of buffers that no output depends on."""
_address = torch.Tensor.data_ptr


class Watch:
    """The weights of a module as they were when a plan took them.

    The counter of a tensor's changes in place misses writes through `.data`, the replay of a CUDA
    graph that trains, and tensors of torch.inference_mode(), which have no counter: these are found
    where an element changes that is compared. It keeps the tensors alive, but no module.
    """

    def __init__(self, module: nn.Module) -> None:
        self._tables: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._paths: list[str] = []
        for path, part in module.named_modules():
            for table in (part._parameters, part._buffers):
                for name, tensor in table.items():
                    if tensor is not None and name != _NOT_COUNTED:
                        self._tables.append(table)
                        self._names.append(name)
                        self._paths.append(f"{path}.{name}".lstrip("."))
        self._tensors = self._now()
        self._counted = [tensor for tensor in self._tensors if not tensor.is_inference()]
        self._versions = [tensor._version for tensor in self._counted]
        self._addresses = list(map(_address, self._tensors))
        self._places = _places(self._tensors)
        self._sample = _sample(self._places)
        self._calls = 0

    def change(self) -> str:
        """Returns the first change, in words for a message; "" where no change is found."""
        now = self._now()
        if not all(map(is_, now, self._tensors)):
            index = next(index for index, (new, old) in enumerate(
                zip(now, self._tensors, strict=True)) if new is not old)
            return f"another tensor has taken the place of {quoted(self._paths[index])}"
        versions = [tensor._version for tensor in self._counted]
        if versions != self._versions:
            return self._changed(self._counted, versions, self._versions)
        addresses = list(map(_address, now))
        if addresses != self._addresses:
            return self._changed(now, addresses, self._addresses)
        self._calls += 1
        if self._calls >= CALLS and not _captures(now):
            if not all(map(torch.equal, _sample(self._places), self._sample)):
                return "numbers were written that torch does not count"
            self._calls = 0
        return ""

    def _now(self) -> list[Any]:
        return list(map(dict.get, self._tables, self._names))

    def _changed(self, tensors: Sequence[Any], now: Sequence[int], before: Sequence[int]) -> str:
        tensor = tensors[list(map(ne, now, before)).index(True)]
        path = next(path for path, each in zip(self._paths, self._tensors, strict=True)
                    if each is tensor)
        return f"{quoted(path)} was changed in place"


def _places(tensors: Sequence[Any]) -> list[list[tuple[Any, Any, Any, int]]]:
    """Returns elements at equal distances of each tensor, as arguments of torch.as_strided: a list
    for each device and dtype."""
    found: dict[Any, list[tuple[Any, Any, Any, int]]] = defaultdict(list)
    for tensor in tensors:
        if tensor.layout == torch.strided and tensor.numel():
            last = sum((size - 1) * stride for size, stride in zip(
                tensor.shape, tensor.stride(), strict=True))
            step = max(last // ELEMENTS, 1)
            found[tensor.device, tensor.dtype].append(
                (tensor, (last // step + 1,), (step,), tensor.storage_offset()))
    return list(found.values())


def _sample(places: Sequence[Sequence[tuple[Any, Any, Any, int]]]) -> list[Any]:
    """Returns the bytes of elements of tensors, for each device and dtype."""
    with torch.no_grad():
        return [torch.cat([torch.as_strided(*place) for place in each]).view(torch.uint8)
                for each in places]


def _captures(tensors: Sequence[Any]) -> bool:
    """Whether the current stream records a CUDA graph, during which no number can be read."""
    return any(tensor.is_cuda for tensor in tensors) and torch.cuda.is_current_stream_capturing()
