"""A kernel launch that is ready but for the run-time buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gossamer.device.base import Argument, Kernel


@dataclass(frozen=True)
class Launch:
    """One kernel launch whose arguments are known but for the run-time buffers: a callable
    argument is called with (inputs, outputs, workspace)."""

    kernel: Kernel
    work_groups: tuple[int, ...]
    work_group_size: tuple[int, ...]
    arguments: tuple[Argument | Callable[..., Argument], ...]
    shared_bytes: int = 0


def input_buffer(index: int) -> Callable[..., Argument]:
    return lambda inputs, outputs, workspace: inputs[index]


def output_buffer(index: int) -> Callable[..., Argument]:
    return lambda inputs, outputs, workspace: outputs[index]


def workspace_buffer(inputs: object, outputs: object, workspace: Argument) -> Argument:
    return workspace
