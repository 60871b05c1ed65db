"""Tensors of the stand-in for PyTorch: arrays of NumPy with a device, and a list of the calls that
would queue work on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

CALLS: list[str] = []
"""The calls of streams, graphs, compilers and switches are noted here, in order."""
CONTIGUOUS, CHANNELS_LAST = "contiguous_format", "channels_last"


class Device:
    """The device of tensors."""

    def __init__(self, kind: str, index: int | None = None) -> None:
        self.type, self.index = kind, index

    def __repr__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


CPU = Device("cpu")


class Tensor:
    """An array on a device."""

    def __init__(self, array: Any, device: Device = CPU, memory_format: str = CONTIGUOUS) -> None:
        self.array = array if isinstance(array, np.ndarray) else np.asarray(array)
        self.device, self.memory_format = device, memory_format
        self.grad_fn = None

    def like(self, array: Any) -> Tensor:
        return Tensor(array, self.device, self.memory_format)

    dtype = property(lambda self: self.array.dtype)
    shape = property(lambda self: self.array.shape)
    ndim = property(lambda self: self.array.ndim)
    is_cuda = property(lambda self: self.device.type == "cuda")

    @property
    def data(self) -> Tensor:
        return self

    @data.setter
    def data(self, other: Tensor) -> None:
        CALLS.append(f"data of {self.shape} has strides {other.array.strides}")
        self.array = other.array

    def __repr__(self) -> str:
        return f"{self.dtype}{list(self.shape)} {self.device} {self.memory_format}"

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: Any) -> Tensor:
        return self.like(self.array[index])

    def __abs__(self) -> Tensor:
        return self.like(abs(self.array))

    def __bool__(self) -> bool:
        return bool(self.array)

    def to(self, *places: Any, dtype: Any = None, memory_format: str | None = None) -> Tensor:
        array, device = self.array, self.device
        for place in (*places, dtype):
            if isinstance(place, Device):
                device = place
            elif place is not None:
                array = array.astype(place)
        return Tensor(array, device, memory_format or self.memory_format)

    def contiguous(self, memory_format: str = CONTIGUOUS) -> Tensor:
        return Tensor(np.ascontiguousarray(self.array), self.device, memory_format)

    def is_contiguous(self, memory_format: str = CONTIGUOUS) -> bool:
        return self.memory_format == memory_format and self.array.flags.c_contiguous

    def view(self, *shape: int) -> Tensor:
        return self.like(self.array.reshape(shape))

    def reshape(self, *shape: int) -> Tensor:
        return self.like(self.array.reshape(shape))

    def flatten(self, first: int = 0, last: int = -1) -> Tensor:
        last %= self.ndim
        return self.like(self.array.reshape(
            *self.shape[:first], -1, *self.shape[last + 1:]))

    def t(self) -> Tensor:
        return self.like(self.array.T)

    def transpose(self, first: int, second: int) -> Tensor:
        return self.like(self.array.swapaxes(first, second))

    def permute(self, *axes: int) -> Tensor:
        return self.like(self.array.transpose(axes))

    def clone(self) -> Tensor:
        return self.like(self.array.copy())

    def cpu(self) -> Tensor:
        return Tensor(self.array, CPU, self.memory_format)

    def numpy(self) -> np.ndarray:
        assert self.device == CPU
        return self.array

    def float(self) -> Tensor:
        return self.to(np.dtype("float32"))

    def double(self) -> Tensor:
        return self.to(np.dtype("float64"))

    def detach(self) -> Tensor:
        return self

    def numel(self) -> int:
        return self.array.size

    def unbind(self) -> list[Tensor]:
        return [self.like(part) for part in self.array]

    def tolist(self) -> Any:
        return self.array.tolist()

    def sum(self, axis: Any = None) -> Tensor:
        return self.like(self.array.sum(axis))

    def mean(self, axes: Any) -> Tensor:
        return self.like(self.array.mean(axes, np.float64).astype(self.dtype))

    def all(self) -> Tensor:
        return self.like(self.array.all())

    def min(self) -> Tensor:
        return self.like(self.array.min())

    def max(self) -> Tensor:
        return self.like(self.array.max())

    def matmul(self, other: Tensor) -> Tensor:
        return self.like(np.matmul(self.array, other.array))

    def _write(self, array: Any) -> Tensor:
        self.array[...] = array
        return self

    def copy_(self, other: Tensor) -> Tensor:
        CALLS.append(f"copy {other} to {self}")
        return self._write(other.array)

    def add_(self, other: Any, alpha: Any = 1) -> Tensor:
        return self._write(self.array + alpha * plain(other))

    def remainder_(self, other: int) -> Tensor:
        return self._write(self.array % other)

    def sigmoid_(self) -> Tensor:
        return self._write(1 / (1 + np.exp(-self.array)))

    def addr_(self, x: Tensor, y: Tensor, alpha: Any) -> Tensor:
        return self._write(self.array + alpha * np.outer(x.array, y.array))

    def baddbmm_(self, x: Tensor, y: Tensor, alpha: Any) -> Tensor:
        return self._write(self.array + alpha * np.matmul(x.array, y.array))

    __hash__ = None  # type: ignore[assignment]


def plain(value: Any) -> Any:
    """Returns the arrays of tensors, and other values as they are."""
    return value.array if isinstance(value, Tensor) else value


def of_arrays(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """Returns a function of tensors and numbers that computes with arrays. The result has the dtype
    of the first tensor, or the bools of a comparison."""
    def called(*arguments: Any, **options: Any) -> Tensor:
        first = next(each for each in arguments if isinstance(each, Tensor))
        result = np.asarray(function(*map(plain, arguments), **options))
        return first.like(result if result.dtype == bool else result.astype(first.dtype))

    return called


def _operators(names: Sequence[str]) -> None:
    for name in names:
        setattr(Tensor, f"__{name}__", of_arrays(
            lambda x, y, name=name: getattr(np.asarray(x), f"__{name}__")(y)))


_operators(("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "mod", "lt", "le", "gt", "ge",
            "eq", "ne"))
