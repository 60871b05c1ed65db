"""The nesting of tensors in a module's arguments and outputs."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from gossamer.errors import InputError, UnsupportedError, kind_of, quoted


class InputForm:
    """The nesting of tensors in a module's arguments.

    Tensors may be nested at any depth in tuples, lists, dicts and dataclasses. A value that is not
    a tensor is a constant of the network, and must be the same in each call.

    forward: the module's method forward.
    args, kwargs: example arguments of forward.
    names: the path of each tensor, such as "x" or "pair.0".
    tensors: the tensors of the example.
    Raises InputError if the arguments do not fit forward's signature.
    """

    def __init__(self, forward: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._signature = inspect.signature(forward)
        arguments = self._bound(args, kwargs)
        _register_dataclasses(arguments)
        paths, self._spec = pytree.tree_flatten_with_path(arguments)
        self._leaves = [leaf for _, leaf in paths]
        self._places = [index for index, leaf in enumerate(self._leaves)
                        if isinstance(leaf, torch.Tensor)]
        self.names = [_path_text(paths[index][0]) for index in self._places]
        self.tensors = [self._leaves[index] for index in self._places]
        self._leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves]
        self._takes_tensors_only = (len(args) == len(self.tensors) == len(self._leaves)
                                    and all(isinstance(arg, torch.Tensor) for arg in args))
        self._count = len(args)

    def of_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """Return the tensors of a call.

        Raises InputError if the arguments are nested differently from those of the example, or if a
        constant has another value.
        """
        if self._takes_tensors_only and not kwargs and len(args) == self._count and all(
                [isinstance(arg, torch.Tensor) for arg in args]):
            return args
        leaves, spec = pytree.tree_flatten(self._bound(args, kwargs))
        if spec != self._spec:
            example = ["tensor" if index in self._places else leaf
                       for index, leaf in enumerate(self._leaves)]
            raise InputError("the arguments are nested differently from those of the example: "
                             f"{_nesting_text(leaves, spec)}, expected "
                             f"{_nesting_text(example, self._spec)}; optimise the module with an "
                             "example of this nesting")
        for index, (leaf, expected) in enumerate(zip(leaves, self._leaves, strict=True)):
            if index in self._places:
                if not isinstance(leaf, torch.Tensor):
                    raise InputError(f"input {quoted(self.names[self._places.index(index)])} is "
                                     f"{kind_of(leaf)}, expected a torch.Tensor")
            elif type(leaf) is not type(expected) or leaf != expected:
                raise InputError(f"an argument is {quoted(leaf)}, but was {quoted(expected)} in "
                                 "the example: arguments that are not tensors are constants of the "
                                 "optimised module; optimise the module again with this value")
        return [leaves[index] for index in self._places]

    def arguments(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments that contain these tensors."""
        leaves = list(self._leaves)
        for index, tensor in zip(self._places, tensors, strict=True):
            leaves[index] = tensor
        bound = inspect.BoundArguments(self._signature,
                                       pytree.tree_unflatten(leaves, self._spec))
        return bound.args, bound.kwargs

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise InputError(f"the arguments do not fit forward{self._signature}: {error}"
                             ) from None


class OutputForm:
    """The nesting of tensors in a module's outputs.

    result: the module's result for an example.
    inputs: the tensors of the example.
    slots: for each tensor of the result, the index of the network's output, or -1 - i if the module
    returned input i unchanged.
    examples: the network's outputs for the example: the distinct tensors of the result that are not
    inputs.
    count: number of the network's outputs.
    """

    def __init__(self, result: Any, inputs: Sequence[Any]) -> None:
        _register_dataclasses(result)
        leaves, self._spec = pytree.tree_flatten(result)
        self._is_tensor = [isinstance(leaf, torch.Tensor) for leaf in leaves]
        self._leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.slots: list[int] = []
        self.examples: list[Any] = []
        for tensor in itertools.compress(leaves, self._is_tensor):
            given, slot = _position(tensor, inputs), _position(tensor, self.examples)
            if given is not None:
                slot = -1 - given
            elif slot is None:
                slot = len(self.examples)
                self.examples.append(tensor)
            self.slots.append(slot)
        self.count = len(self.examples)
        self._is_one = len(leaves) == 1 and self.slots == [0] and self._spec == (
            pytree.tree_flatten(self.examples[0])[1])

    def distinct(self, result: Any) -> tuple[Any, ...]:
        """Return the network's outputs, extracted from a result of this structure."""
        tensors = [leaf for leaf, is_tensor in zip(
            pytree.tree_leaves(result), self._is_tensor, strict=True) if is_tensor]
        return tuple(tensors[self.slots.index(slot)] for slot in range(self.count))

    def check_sizes(self, result: Any) -> None:
        """Raise UnsupportedError if a result has other sizes than the example's as plain numbers.

        Within torch.export, comparing a symbolic size with a number makes the size a constant.
        """
        for leaf, expected in zip(pytree.tree_leaves(result), self._leaves, strict=True):
            if isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool) and (
                    leaf != expected):
                raise UnsupportedError("forward returns a number that depends on the batch size")

    def filled(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> Any:
        """Return the module's result, built from the network's outputs and inputs."""
        if self._is_one:
            return outputs[0]
        tensors = iter([outputs[slot] if slot >= 0 else inputs[-1 - slot]
                        for slot in self.slots])
        leaves = [next(tensors) if is_tensor else leaf
                  for leaf, is_tensor in zip(self._leaves, self._is_tensor, strict=True)]
        return pytree.tree_unflatten(leaves, self._spec)


def _position(tensor: Any, tensors: Sequence[Any]) -> int | None:
    return next((index for index, other in enumerate(tensors) if other is tensor), None)


def _register_dataclasses(value: Any) -> None:
    """Register the dataclasses within a value with torch.export."""
    while True:
        unknown = {type(leaf) for leaf in pytree.tree_leaves(value)
                   if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)}
        if not unknown:
            return
        for kind in unknown:
            torch.export.register_dataclass(kind)


def _path_text(path: Sequence[Any]) -> str:
    keys = (next((str(value) for name in ("key", "idx", "name")
                  if (value := getattr(key, name, None)) is not None), str(key)) for key in path)
    return ".".join(keys)


def _nesting_text(leaves: Sequence[Any], spec: Any) -> str:
    """Return text that shows the nesting of values and tensors."""
    words = ["tensor" if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return quoted(str(pytree.tree_unflatten(words, spec)))
