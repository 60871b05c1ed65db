"""optimize and explain: what becomes of a module of PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gossamer.device.base import Device
from gossamer.model.input_format import InputFormat
from gossamer.torch.library import check_torch

if TYPE_CHECKING:
    from gossamer.torch.explanation import Explanation
    from gossamer.torch.optimized_module import OptimizedModule


def optimize(module: Any, example_inputs: Any = None, device: str | Device | None = None, *,
             precision: str | None = None, effort: str | None = None,
             inputs: InputFormat | Mapping[str, InputFormat] | None = None,
             tolerance: float | None = None, budget: float | None = None, strict: bool = False,
             threads: int | str = "all", follow: bool = False) -> OptimizedModule:
    """Make a fast module of a module of PyTorch, for inference.

    The result is compared with the module on the example before it is returned.

    Parameters
    ----------
    module : torch.nn.Module or torch.export.ExportedProgram
        The module, in evaluation mode, with all its weights on one device, in float32, float16 or
        bfloat16.
    example_inputs : torch.Tensor, tuple or dict, optional
        Arguments of the module: one tensor, a tuple of all arguments, or a dict of arguments by
        their names. Tensors whose first axis is as long as that of the first tensor are batches,
        whose size is free afterwards. An ExportedProgram has an example of its own.
    device : str or Device, optional
        The device, by default that of the module: its GPU, or "host" for the processor.
    precision : {"fp32", "tf32", "fp16"}, optional
        The least precise arithmetic that layers may use where it is measured to be faster. With an
        effort it is by default "fp16" for a module in float16 or bfloat16; else it is "fp32".
    effort, budget, strict, threads : optional
        As for `gossamer.compile`.
    inputs : InputFormat or mapping of str to InputFormat, optional
        Forms in which the optimised module takes its inputs where these are others than the
        module's, such as bytes in NHWC. `example_inputs` are then in these forms.
    tolerance : float, optional
        The largest normalised error that is accepted on the example. By default it is 1e-4, or
        1e-2 where the module or the precision is shorter than float32, 2e-2 where the module is
        quantised, or twice that of torch against float64 where that is more.
    follow : bool, default False
        Whether changes of the module's weights are followed, within 100 calls, instead of being an
        error. The module is then kept alive.

    Returns
    -------
    OptimizedModule
        A `torch.nn.Module` that is called as `module` is, and returns what that returns.

    Raises
    ------
    InputError
        If PyTorch is missing or too old, the module is in training mode or on two devices, or an
        argument is wrong.
    UnsupportedError
        If the module cannot be exported or computed, or if its outputs on the example differ from
        torch's by more than is allowed.
    DeviceError
        If the device is not there or fails.
    """
    check_torch()
    from gossamer.torch.optimize import optimize as optimized

    return optimized(module, example_inputs, device, precision=precision, effort=effort,
                     inputs=inputs, tolerance=tolerance, budget=budget, strict=strict,
                     threads=threads, follow=follow)


def explain(module: Any, example_inputs: Any = None, device: str | Device | None = None
            ) -> Explanation:
    """Say what would become of a module of PyTorch, without compiling or measuring anything.

    Parameters
    ----------
    module : torch.nn.Module or torch.export.ExportedProgram
        The module, as for `optimize`.
    example_inputs : torch.Tensor, tuple or dict, optional
        Arguments of the module, as for `optimize`; the batch size is theirs.
    device : str or Device, optional
        The device, by default that of the module.

    Returns
    -------
    Explanation
        What would run where, the layers with zeros, signs or depthwise convolutions, and the time
        that is expected; its text is that of `print`.

    Raises
    ------
    InputError, UnsupportedError, DeviceError
        As `optimize` does.
    """
    check_torch()
    from gossamer.torch.explanation import explain as explained

    return explained(module, example_inputs, device)
