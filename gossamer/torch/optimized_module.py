"""OptimizedModule: a PyTorch module that is computed by a plan."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from gossamer.errors import InputError, quoted
from gossamer.plan.plan import Plan
from gossamer.plan.report.report import Report
from gossamer.torch.call_form import InputForm, OutputForm
from gossamer.torch.captured import check_kind, gradient_error, is_channels_last, module_of
from gossamer.torch.weights import Watch, Weights

_NHWC = (0, 2, 3, 1)


class OptimizedModule(nn.Module):
    """A module that computes the outputs of an original module by a plan.

    `gossamer.optimize` returns this module. It is called like the original module, with tensors on
    the same device, runs on torch's current stream, and computes no gradients. An OptimizedModule
    has no parameters: the weights are packed in the plan, and `update` replaces them.

    Parameters
    ----------
    plan : Plan
        The plan.
    inputs : InputForm
        The nesting of tensors in the arguments.
    outputs : OutputForm
        The nesting of tensors in the outputs.
    replan : callable
        Function that takes the old plan and a module, and returns a plan with the module's weights.
    followed : tuple of torch.nn.Module, Weights and Watch, optional
        The module with the weights to follow, these weights, and a Watch that was created before
        the weights were read; None if the weights change only by `update`.
    permuted : tuple of bool
        For each input, whether its axes are permuted from N, C, H, W to N, H, W, C before the plan
        is called, because the plan cannot distinguish the two orders by the sizes.
    fixed : str
        Why the module accepts only the example's batch size; "" if it accepts any batch size.
    several : bool
        Whether the module accepts any batch size but 1, which forward computes by another graph.
    """

    def __init__(self, plan: Plan, inputs: InputForm, outputs: OutputForm,
                 replan: Callable[[Plan, nn.Module], Plan],
                 followed: tuple[nn.Module, Weights, Watch] | None, permuted: tuple[bool, ...],
                 fixed: str, several: bool) -> None:
        super().__init__()
        self.training = False
        self._plan = plan
        self._inputs = inputs
        self._outputs = outputs
        self._replan = replan
        self._followed = None if followed is None else self._reference(*followed)
        self._permuted = permuted if any(permuted) else ()
        self._casts = [(example.dtype, torch.channels_last if is_channels_last(example) else None)
                       for example in outputs.examples]
        self._layouts = [_layout_of(example) for example in outputs.examples]
        self._device = inputs.tensors[0].device
        self._fixed = fixed
        self._several = several
        self._shapes = [tensor.shape for tensor in inputs.tensors] if fixed else []
        self._lock = threading.RLock()
        inputs.tensors = []
        outputs.examples = []

    @property
    def plan(self) -> Plan:
        """The plan that computes the module.

        Returns
        -------
        Plan
            The plan. Its inputs are the tensors in the arguments, in their order.
        """
        return self._plan

    @torch.compiler.disable
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs of the original module.

        Parameters
        ----------
        *args, **kwargs
            The module's arguments, of any batch size if the batch size is free.

        Returns
        -------
        Any
            The outputs, without gradients, in the dtypes and memory formats of the original
            module's outputs.

        Raises
        ------
        InputError
            If the arguments do not fit, an input requires a gradient, a layer of the original
            module was replaced, or its weights have changed to weights for which `update` raises
            this error.
        DeviceError
            If the device fails or has too little memory.
        """
        tensors = given = self._inputs.of_call(args, kwargs)
        if self._fixed:
            self._check_shapes(tensors)
        if self._several:
            self._check_batch(tensors)
        if any([tensor.requires_grad for tensor in tensors]):
            tensors = self._detached(tensors)
        if self._permuted:
            tensors = [tensor.permute(_NHWC) if is_permuted else tensor
                       for tensor, is_permuted in zip(tensors, self._permuted, strict=True)]
        results = self._computed(tensors)
        # a GPU computes while the weights are compared: comparing takes as long as a small network
        if (followed := self._followed) is not None:
            followed[1].check_layers()
            if followed[2].change(followed[1].now()):
                self._follow()
                results = self._computed(tensors)
        return self._outputs.filled(results, given)

    def report(self, batch: int | None = None) -> Report:
        """Return the algorithm and the device of each layer.

        Parameters
        ----------
        batch : int, optional
            The number of images; by default the last batch size that was computed.

        Returns
        -------
        Report
            One row for each step of the plan.
        """
        return self._plan.report(batch)

    def save(self, path: str | Path) -> None:
        """Write the plan to a file for `gossamer.Plan.load` and `gossamer run`.

        Parameters
        ----------
        path : str or Path
            The file to write. The inputs of the saved plan are the tensors in the arguments, in
            their order.

        Raises
        ------
        InputError
            If the file cannot be written.
        """
        self._plan.save(path)

    def update(self, module: Any) -> None:
        """Replace the weights by a module's, and keep each layer's algorithm.

        Parameters
        ----------
        module : torch.nn.Module or torch.export.ExportedProgram
            The module that was optimised, or a module with the same layers. With `follow=True`,
            changes of this module are followed from now on.

        Raises
        ------
        InputError
            If the module has other weights or shapes, or if a layer's algorithm depends on the
            zeros or values of the old weights and does not fit the new ones.
        """
        module = module_of(module)
        check_kind(module)
        with self._lock:
            weights = Weights(module)
            # create the watch before the weights are read: a weight that changes in between is then
            # noticed
            watch = weights.watched()
            old, self._plan = self._plan, self._replan(self._plan, module)
            if self._followed is not None:
                self._followed = self._reference(module, weights, watch)
        # this frees the old plan, unless a call in another thread still uses it
        del old

    def state_dict(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise InputError: packed weights are not tensors."""
        raise InputError("an optimised module has no state_dict: its weights are packed for one "
                         "device; save the state_dict of the original module, or the plan: "
                         "fast.save('model.plan')")

    def load_state_dict(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise InputError: `update` replaces the weights."""
        raise InputError("an optimised module cannot load a state_dict; load it into the original "
                         "module, and call fast.update(module)")

    def train(self, mode: bool = True) -> OptimizedModule:
        """Return the module itself. Raises InputError for training mode."""
        if mode:
            raise InputError("an optimised module computes no gradients; train the original "
                             "module, and call fast.update(module)")
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> NoReturn:
        raise InputError("an optimised module cannot change its device or dtype; move or convert "
                         "the original module, and optimise it again")

    def _slow_forward(self, *args: Any, **kwargs: Any) -> NoReturn:
        # torch.jit.trace calls this method instead of forward; a trace would record the outputs of
        # its example as constants
        raise _graph_error()

    def __deepcopy__(self, memo: Mapping[int, Any]) -> NoReturn:
        """Raise TypeError: the module cannot be copied."""
        self.__reduce__()

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: the module cannot be pickled."""
        raise TypeError("an optimised module holds memory of its device and cannot be pickled or "
                        "copied; threads may share it, and another process can read its plan by "
                        "fast.save(FILE) and gossamer.Plan.load(FILE)")

    def __repr__(self) -> str:
        """Return the names of the network and of the device."""
        return f"OptimizedModule({self._plan!r})"

    def _repr_html_(self) -> str:
        """Return the names and the plan's report as HTML for notebooks."""
        return self._plan.html(repr(self))

    def _computed(self, tensors: Any) -> list[Any]:
        """Return the plan's outputs in the module's dtypes and formats."""
        for name, tensor in zip(self._inputs.names, tensors, strict=True):
            if tensor.device != self._device:
                raise InputError(f"input {quoted(name)} is on {tensor.device}, but the module is "
                                 f"on {self._device}; move the input: "
                                 f"x.to({str(self._device)!r})")
        try:
            results = self._plan(*tensors) if self._outputs.count else ()
        except InputError:
            if torch.compiler.is_compiling():
                raise _graph_error() from None
            raise
        if self._outputs.count == 1:
            results = (results,)
        if self._plan.graph.tail is not None:  # outputs whose shapes depend on the data
            results = [torch.as_tensor(result, device=self._device) for result in results]
        results = [result if result.dtype == dtype and memory_format is None
                   else result.to(dtype, memory_format=memory_format or torch.preserve_format)
                   for result, (dtype, memory_format) in zip(results, self._casts, strict=True)]
        if any(self._layouts):
            results = [result if layout is None else _in_layout(result, *layout)
                       for result, layout in zip(results, self._layouts, strict=True)]
        return results

    def _check_shapes(self, tensors: Any) -> None:
        for name, tensor, shape in zip(self._inputs.names, tensors, self._shapes, strict=True):
            if tensor.shape != shape:
                raise InputError(f"input {quoted(name)} has shape {tuple(tensor.shape)}, expected "
                                 f"{tuple(shape)}: the batch size is fixed ({self._fixed})")

    def _check_batch(self, tensors: Any) -> None:
        name, tensor = next((name, tensor) for name, tensor in zip(
            self._inputs.names, tensors, strict=True) if tensor.dim())
        if tensor.shape[0] == 1:
            raise InputError(f"input {quoted(name)} has batch 1, which forward computes unlike "
                             "larger batches, as squeeze() does; optimise the module with an "
                             "example of batch 1")

    def _detached(self, tensors: Any) -> list[Any]:
        for name, tensor in zip(self._inputs.names, tensors, strict=True):
            if tensor.requires_grad and torch.is_grad_enabled():
                raise gradient_error(name)
        return [tensor.detach() for tensor in tensors]

    def _reference(self, module: nn.Module, weights: Weights, watch: Watch,
                   ) -> tuple[weakref.ref[nn.Module], Weights, Watch]:
        """Return a weak reference to a module, the module's weights and a watch.

        When the module is freed, it is no longer followed.
        """
        own = weakref.ref(self)

        def ended(_: Any) -> None:
            if (fast := own()) is not None:
                fast._followed = None

        return weakref.ref(module, ended), weights, watch

    def _follow(self) -> None:
        with self._lock:
            # another thread may have updated the weights in the meantime
            if self._followed is None:
                return
            followed, weights, watch = self._followed
            if watch.change(weights.now()) and (module := followed()) is not None:
                self.update(module)


def _layout_of(tensor: Any) -> tuple[Any, Any] | None:
    """Return a tensor's shape and strides; None if it is contiguous or channels-last."""
    if tensor.is_contiguous() or is_channels_last(tensor):
        return None
    return tensor.shape, tensor.stride()


def _in_layout(tensor: Any, shape: Any, strides: Any) -> Any:
    """Return a copy of a tensor with the given strides.

    If the tensor does not have the shape `shape`, the copy is dense, and its axes are in memory in
    the order of decreasing `strides`.
    """
    if tensor.shape == shape:
        for axis, stride in enumerate(strides):
            if not stride:
                tensor = tensor.narrow(axis, 0, 1)
        return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype,
                                   device=tensor.device).copy_(tensor).expand(shape)
    order = sorted(range(tensor.dim()), key=lambda axis: -strides[axis])
    inverse = [order.index(axis) for axis in range(tensor.dim())]
    return tensor.permute(order).contiguous().permute(inverse)


def _graph_error() -> InputError:
    return InputError("an optimised module cannot be used with torch.export, torch.onnx and "
                      "torch.jit; give them the original module")
