"""Functions that compile networks to plans, and that replace the weights of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gossamer.device.base import Device
from gossamer.device.registry import find, find_several, names_several
from gossamer.errors import with_known_names
from gossamer.model.formats import with_formats
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import check_nodes, check_open_dimensions, is_open, with_shapes
from gossamer.model.input_format import InputFormat
from gossamer.model.passes.padded_channels import has_padded_channels
from gossamer.plan.choose.saved_options import StoredChoices
from gossamer.plan.lower.rules import optimised_for
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy


@with_known_names
def compile(model: Any, device: str | Device | Sequence[str | Device] | None = None, *,
            shapes: Mapping[str, Sequence[int]] | None = None,
            outputs: Sequence[str] | None = None, strict: bool = False,
            effort: str | None = None, precision: str | None = None, calibration: Any = None,
            tolerance: float | None = None, only: str | None = None,
            sparse_threshold: float | None = None, budget: float | None = None,
            force: Mapping[str, str] | None = None, threads: int | str = "all",
            vendors: bool = True,
            inputs: InputFormat | Mapping[str, InputFormat] | str | None = None,
            output_dtype: str | None = None) -> Any:
    """Make a plan that runs a network on a device.

    Parameters
    ----------
    model : str, Path, bytes, file object, onnx.ModelProto or Graph
        A graph from `gossamer.load`, or an argument of `gossamer.load`: a file name, the name of a
        network of the zoo, or an ONNX model in memory.
    device : str, Device, or sequence of str or Device, optional
        The device, such as "cuda:0", "opencl:1" or "host"; by default a CUDA device if there is
        one, else an OpenCL GPU, else the host. The devices of a list share the work; a list may
        name a device twice. "cuda:all" stands for all CUDA devices, and "cuda:0,cuda:2" for a list.
    shapes : mapping of str to sequence of int, optional
        The shape, without the batch, of each input that has open dimensions besides the batch, by
        the input's name. Dimensions that stay open are set by the arrays of each call.
    outputs : sequence of str, optional
        Names of the outputs to return, in this order; by default all outputs. Layers that only
        other outputs need are not computed.
    strict : bool, default False
        Whether a layer that the device cannot run is an error. If not, such a layer runs on the
        host.
    effort : {"quick", "normal", "max"}, optional
        How many candidates are measured for the layers when a batch size is first used; the fastest
        plan is chosen. Times are stored on disk and not measured again. By default nothing is
        measured, and each layer uses the first supported algorithm in a fixed order.
    precision : {"fp32", "tf32", "fp16"}, optional
        The lowest precision in which layers may be computed, by default fp32. A layer is computed
        in less than float32 only if this was measured to be faster. The dtypes of the network's
        inputs and outputs stay the same, except that float64 in a file becomes float32 if a
        precision is given. If no precision is given and ONNX Runtime is installed, ONNX Runtime
        computes float64 on the host.
    calibration : array or tuple of array, optional
        Inputs as for `plan(x)`, with any number of images. The report contains the largest
        normalised error of the outputs on these inputs against float64. If a node mixes the
        images of a batch, plans are made for exactly this number of images.
    tolerance : float, optional
        The largest allowed normalised error on the calibration inputs, such as 1e-3. If the error
        would be larger, some layers are computed in float32 instead.
    only : str, optional
        The name of an algorithm that computes every layer that it supports. All other layers use
        other algorithms. Published algorithms can be compared with this option.
    sparse_threshold : float, optional
        A sparsity between 0 and 1, such as 0.6. Layers with a larger fraction of zero weights use a
        sparse algorithm, which skips zeros; all other layers use a dense algorithm. Times of sparse
        and dense algorithms are not compared. If several algorithms of the required kind support a
        layer, the fastest is chosen if `effort` is given, else the first in a fixed order.
    budget : float, optional
        Seconds that measuring may take for a batch size. After this time the plan is chosen by the
        times measured so far. This plan is never slower than the plan without an effort: the
        candidates of that plan are measured first, even if that takes longer than the budget.
    force : mapping of str to str, optional
        The name of the algorithm that must compute a layer, by the layer's name. If the algorithm
        cannot compute the layer, calling the plan raises an InputError that says why.
    threads : int or "all", default "all"
        Threads of BLAS and of ONNX Runtime for a layer on the host. "all" means one thread for each
        processor that the process may use, but at most OMP_NUM_THREADS. One thread is faster if
        other programs keep CPU cores busy.
    vendors : bool, default True
        Whether layers may use algorithms of vendors' libraries, such as ONNX Runtime on the host
        and cuDNN on CUDA, even if gossamer's own algorithms support these layers.
    inputs : InputFormat, mapping of str to InputFormat, or "photos", optional
        The input format in which the plan accepts the network's input, or the input formats of
        several inputs by their names. An input format has a dtype, an order of the axes, and a
        normalisation that the device computes. "photos" stands for bytes in NHWC, normalised as
        specified by the network's metadata. By default the plan accepts inputs as declared in the
        network's file.
    output_dtype : {"float32", "float16"}, optional
        The dtype in which float32 outputs are returned, by default the dtype in the file.

    Returns
    -------
    Plan, PlanGroup or OpenPlan
        A PlanGroup if several devices are named; an OpenPlan, which accepts inputs of any size, if
        sizes other than the batch stay open; else a Plan. The algorithms of the layers are chosen
        when a batch size is first used, once for each kind of device.

    Raises
    ------
    ModelError
        If the model cannot be read or is invalid.
    UnsupportedError
        If the model contains something that gossamer cannot compute.
    DeviceError
        If the device does not exist or fails.
    InputError
        If another argument is invalid.
    """
    from gossamer.model.load import load

    graph = with_shapes(load(model, outputs=outputs, precision=precision), shapes or {})
    check_nodes(graph)
    if inputs is not None or output_dtype is not None:
        graph = with_formats(graph, inputs, output_dtype)
    examples = calibration
    if calibration is not None and not isinstance(calibration, (tuple, list)):
        examples = [calibration]
    policy = Policy(effort, precision or "fp32", strict, only, sparse_threshold, examples,
                    tolerance, budget_s=budget, force=force or {}, threads=threads,
                    vendors=vendors)
    if device is not None and not isinstance(device, Device) and (
            names_several(device) or not isinstance(device, str)):
        from gossamer.plan.plan_group import PlanGroup

        check_open_dimensions(graph)
        return PlanGroup.of(find_several(device), lambda each: Plan(graph, each, policy))
    where = device if isinstance(device, Device) else find(device)
    if calibration is not None:
        check_open_dimensions(graph)
    if is_open(graph):
        from gossamer.plan.open_plan import OpenPlan

        return OpenPlan(graph, where, policy)
    return Plan(graph, where, policy)


def with_weights(plan: Plan, graph: Graph) -> Plan:
    """Return a plan of the same network with other weights.

    Nothing is measured. Raises InputError if a layer differs in more than its weights. Also raises
    InputError if a layer's algorithm depends on the zeros or values of the old weights, and the new
    weights have other zeros or values.

    plan: the plan whose choices are kept, for all batch sizes that it has planned.
    graph: the network with its new weights, as `gossamer.load` returns it.
    """
    # a loaded plan has another policy than the one with which its graph was optimised
    precision = "fp16" if has_padded_channels(plan.graph.notes) else "fp32"
    made = Plan(optimised_for(graph, plan.device, precision), plan.device,
                Policy(strict=plan.policy.strict),
                choices=StoredChoices(Path(graph.name), plan.choices()))
    for batch in made.planned_batches:
        made.program(batch)
    return made
