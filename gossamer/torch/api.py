"""optimize and explain: the public functions for modules of PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gossamer.device.base import Device
from gossamer.errors import with_known_names
from gossamer.model.input_format import InputFormat
from gossamer.torch.library import check_torch

if TYPE_CHECKING:
    from gossamer.torch.explanation import Explanation
    from gossamer.torch.optimized_module import OptimizedModule


@with_known_names
def optimize(module: Any, example_inputs: Any = None, device: str | Device | None = None, *,
             precision: str | None = None, effort: str | None = None,
             inputs: InputFormat | Mapping[str, InputFormat] | None = None,
             tolerance: float | None = None, budget: float | None = None, strict: bool = False,
             threads: int | str = "all", follow: bool = True) -> OptimizedModule:
    """Optimise a PyTorch module for inference.

    Before the fast module is returned, its outputs on the example are compared with the outputs of
    `module`.

    Parameters
    ----------
    module : torch.nn.Module or torch.export.ExportedProgram
        The module, in evaluation mode, with all its weights on one device, in float32, float16 or
        bfloat16.
    example_inputs : torch.Tensor, tuple or dict, optional
        Arguments of the module: one tensor, a tuple of all arguments, or a dict of arguments by
        name. The batch axis is the first axis of the first tensor, and of every other tensor whose
        first axis has the same length. Later calls may have other batch sizes. The default is the
        example of an ExportedProgram.
    device : str or Device, optional
        The device; by default the module's device: its GPU, or "host" for the CPU.
    precision : {"fp32", "tf32", "fp16"}, optional
        The lowest precision in which layers may be computed. A layer has less than float32
        precision only if this was measured to be faster. The default is "fp16" for a module in
        float16 or bfloat16 if an effort is given, and "fp32" in all other cases.
    effort, budget, strict, threads : optional
        As for `gossamer.compile`.
    inputs : InputFormat or mapping of str to InputFormat, optional
        The formats of inputs that the fast module accepts in another format than `module` does,
        such as bytes in NHWC. `example_inputs` must be in these formats.
    tolerance : float, optional
        The largest normalised error that is accepted on the example. The default is 2e-2 for a
        quantised module, 1e-2 if the module's dtype or the precision has fewer bits than float32,
        and 1e-4 for other modules, but always at least twice torch's own error against float64.
        With `precision="fp16"`, the latter is the error of torch in float16.
    follow : bool, default True
        Whether the fast module follows later changes of the module's weights, as long as the module
        is alive. Each call compares the weights' identities, version counters and addresses;
        every hundredth call also compares some of their elements. With False, nothing is compared,
        and the weights change only by `update`.

    Returns
    -------
    OptimizedModule
        A `torch.nn.Module` that is called like `module`, and returns the outputs of `module` within
        the tolerance.

    Raises
    ------
    InputError
        If PyTorch is missing or too old, the module is in training mode or on two devices, or an
        argument is wrong.
    UnsupportedError
        If the module cannot be exported or computed, or if its outputs on the example differ from
        torch's outputs by more than the tolerance.
    DeviceError
        If the device does not exist or fails.
    """
    check_torch()
    from gossamer.torch.optimize import optimize as optimized

    return optimized(module, example_inputs, device, precision=precision, effort=effort,
                     inputs=inputs, tolerance=tolerance, budget=budget, strict=strict,
                     threads=threads, follow=follow)


def explain(module: Any, example_inputs: Any = None, device: str | Device | None = None
            ) -> Explanation:
    """Explain how a PyTorch module would be computed, without measurements.

    Nothing is compiled.

    Parameters
    ----------
    module : torch.nn.Module or torch.export.ExportedProgram
        The module, as for `optimize`.
    example_inputs : torch.Tensor, tuple or dict, optional
        Arguments of the module, as for `optimize`; layers are explained at their batch size.
    device : str or Device, optional
        The device; by default the module's device.

    Returns
    -------
    Explanation
        For each layer, the algorithm, the device, the expected time, and whether the layer has zero
        weights, can be computed on bits, or is a depthwise convolution. `print` shows all of this
        as text.

    Raises
    ------
    InputError, UnsupportedError, DeviceError
        As for `optimize`.
    """
    check_torch()
    from gossamer.torch.explanation import explain as explained

    return explained(module, example_inputs, device)
