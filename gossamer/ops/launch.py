"""Kernel launches with all arguments except the run-time buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gossamer.device.base import Argument, Buffer, Device, Kernel


@dataclass(frozen=True)
class Launch:
    """A kernel launch with all arguments except the run-time buffers.

    Attributes
    ----------
    kernel : Kernel
        The compiled kernel.
    work_groups : tuple of int
        Number of work-groups along each of one to three dimensions.
    work_group_size : tuple of int
        Number of work-items per work-group along each dimension.
    arguments : tuple
        The kernel's arguments in order. An element may be a function, which is called with (inputs,
        outputs, workspace) at each launch and returns the argument.
    shared_bytes : int
        Bytes of dynamic shared memory per work-group.
    """

    kernel: Kernel
    work_groups: tuple[int, ...]
    work_group_size: tuple[int, ...]
    arguments: tuple[Argument | Callable[..., Argument], ...]
    shared_bytes: int = 0

    def run(self, device: Device, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
            workspace: Buffer | None, stream: Any = None) -> None:
        """Queue the launch with the given run-time buffers.

        Parameters
        ----------
        device : Device
            The device that compiled the kernel.
        inputs, outputs : sequence of Buffer
            Device memory of the tensors.
        workspace : Buffer or None
            Scratch memory; None if the kernel needs none.
        stream : Any
            A stream of the device; None is its default stream.

        Raises
        ------
        DeviceError
            The launch exceeds a limit of the device, or the driver failed.
        """
        arguments = [argument(inputs, outputs, workspace) if callable(argument) else argument
                     for argument in self.arguments]
        device.launch(self.kernel, self.work_groups, self.work_group_size, arguments,
                      shared_bytes=self.shared_bytes, stream=stream)


def input_buffer(index: int) -> Callable[..., Argument]:
    """Return the argument of a Launch for one run-time input.

    Parameters
    ----------
    index : int
        Position among the inputs.

    Returns
    -------
    callable
        A function of (inputs, outputs, workspace) that returns the input's buffer.
    """
    return lambda inputs, outputs, workspace: inputs[index]


def output_buffer(index: int) -> Callable[..., Argument]:
    """Return the argument of a Launch for one output.

    Parameters
    ----------
    index : int
        Position among the outputs.

    Returns
    -------
    callable
        A function of (inputs, outputs, workspace) that returns the output's buffer.
    """
    return lambda inputs, outputs, workspace: outputs[index]


def workspace_buffer(inputs: object, outputs: object, workspace: Argument) -> Argument:
    """Return the scratch memory of a launch.

    The function itself can be used as an argument of a Launch.

    Parameters
    ----------
    inputs, outputs : object
        Not used.
    workspace : Buffer or None
        The scratch memory.

    Returns
    -------
    Buffer or None
        The scratch memory.
    """
    return workspace
