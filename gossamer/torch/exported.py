"""Converts modules to networks by torch.export and ONNX in memory."""

from __future__ import annotations

import inspect
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn

from gossamer.accuracy import normalised_error
from gossamer.errors import InputError, UnsupportedError, first_line, quoted
from gossamer.model.graph import Graph
from gossamer.model.load import load
from gossamer.model.readers.onnx.order import SCOPES
from gossamer.torch.call_form import InputForm, OutputForm
from gossamer.torch.exporter_forms import (
    Sizes,
    decomposed,
    interpolations,
    make_plain,
    mark,
    set_names,
    write_squeezes,
)
from gossamer.torch.quantised import WithPlainQuantisation

_PREFIX = "module."
"""Prefix of the module's weights in the exported network."""
_RANDOM = re.compile(
    r"^(rand|randn|randint|randperm|bernoulli|multinomial|normal|uniform)(_like)?_?$")
"""Names of operators that draw random numbers."""
_TRAINING = {"dropout": 2, "dropout_": 2, "alpha_dropout": 2, "feature_dropout": 2,
             "native_dropout": 2, "batch_norm": 5, "rrelu": 3, "rrelu_": 3}
"""Operators that compute differently in training, with the index of the argument that is true in
training. If a call omits the argument, it is false."""
_DTYPES = {onnx.TensorProto.FLOAT: torch.float32, onnx.TensorProto.FLOAT16: torch.float16,
           onnx.TensorProto.BFLOAT16: torch.bfloat16, onnx.TensorProto.INT64: torch.int64,
           onnx.TensorProto.INT32: torch.int32, onnx.TensorProto.INT16: torch.int16,
           onnx.TensorProto.INT8: torch.int8, onnx.TensorProto.UINT8: torch.uint8,
           onnx.TensorProto.BOOL: torch.bool}
_NOT_THE_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
"""Folders with code of torch and gossamer, not of the user."""
_REGISTERING = frozenset({"torch.ao.quantization.fx._decomposed", "torchao", "torchvision"})
"""Modules that register operators that torch's exporter can convert."""
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_LEAST_DIFFERENCE = 1e-2
"""Normalised difference between two results that are not of the same computation."""
_CONSTANT_BATCH = re.compile(r"your code specialized it to be a constant \((\d+)\)")


@dataclass
class Exported:
    """A module converted to a network.

    model: the ONNX model.
    program: the module's torch.export program; None after `forget`.
    weights: the names of the module's parameters and buffers.
    tied: for each further name of a parameter or buffer, its first name.
    fixed: why only the example's batch size can be computed; "" if the batch size is free.
    several: whether the batch size is free, but forward computes a batch of 1 by another graph.
    interpolations: the sizes of the module's interpolations, by the names of their results.
    """

    model: onnx.ModelProto
    program: Any
    weights: frozenset[str]
    tied: Mapping[str, str]
    fixed: str
    several: bool
    interpolations: Mapping[str, Sizes]

    def graph(self, model: onnx.ModelProto | None = None) -> Graph:
        """Return the graph of an ONNX model.

        model: a model whose nodes are nodes of the network; by default the network's own model.
        """
        with warnings.catch_warnings():
            # these warnings are about the content of ONNX files, and the user has no ONNX file
            warnings.simplefilter("ignore")
            return mark(load(model or self.model), self.interpolations)

    @property
    def is_quantised(self) -> bool:
        """Whether the module is quantised; must not be read after `forget`."""
        return _is_quantised(self.program)

    def forget(self) -> None:
        """Free the program and the weights; the plan has its own copy of the weights."""
        self.program = None
        for constant in self.model.graph.initializer:
            if self._weight(constant):
                constant.CopyFrom(onnx.TensorProto(name=constant.name, dims=constant.dims,
                                                   data_type=constant.data_type))

    def set_weights(self, module: nn.Module) -> None:
        """Copy the weights of a module to the model.

        The module must have the same layers as the exported module. Raises InputError if the module
        has other weights, or weights of other shapes or dtypes.
        """
        weights = _weights(module)
        for name, first in self.tied.items():
            # the network has one constant for both
            tensor, other = weights.get(name), weights.get(first)
            if tensor is not other and tensor is not None and other is not None and (
                    tensor.dtype != other.dtype or not torch.equal(tensor, other)):
                raise InputError(f"{quoted(name)} and {quoted(first)} were one tensor when the "
                                 "module was optimised, and are two now; optimise the module again")
        for constant in self.model.graph.initializer:
            if not (name := self._weight(constant)):
                continue
            if name not in weights:
                raise InputError(f"the module has no weight {quoted(name)}, but the optimised "
                                 "module has; give a module with the same layers, or optimise this "
                                 "one")
            tensor = weights[name].detach().cpu().contiguous()
            dtype = _DTYPES.get(constant.data_type)
            if (tensor.dtype, list(tensor.shape)) != (dtype, list(constant.dims)):
                raise InputError(f"{quoted(name)} is {tensor.dtype} of shape "
                                 f"{tuple(tensor.shape)}, expected {dtype} of shape "
                                 f"{tuple(constant.dims)}; give a module with the same layers, or "
                                 "optimise this one")
            changed = onnx.TensorProto(name=constant.name, data_type=constant.data_type,
                                       dims=constant.dims)
            changed.raw_data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
            constant.CopyFrom(changed)
        if added := sorted(weights.keys() - self.weights):
            raise InputError(f"the module has a weight {quoted(added[0])}, but the optimised "
                             "module has none; give a module with the same layers, or optimise "
                             "this one")

    def _weight(self, constant: onnx.TensorProto) -> str:
        """Return the name of the weight that a constant holds; "" if it is none.

        Other constants of the network are tensors of forward, and attributes of the module that
        are neither parameters nor buffers.
        """
        name = constant.name.removeprefix(_PREFIX)
        return name if name != constant.name and name in self.weights else ""


def _tied(module: nn.Module) -> dict[str, str]:
    """Return the first name of each parameter or buffer with several names, by its other names."""
    first: dict[int, str] = {}
    return {name: known for name, tensor in _weights(module).items()
            if (known := first.setdefault(id(tensor), name)) != name}


def _weights(module: nn.Module) -> dict[str, Any]:
    """Return the parameters and buffers of a module by all of their names."""
    return {**dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers(remove_duplicate=False))}


class _Tensors(nn.Module):
    """A module whose forward takes tensors and returns distinct tensors.

    The class flattens the nesting of arguments and outputs. Inputs that the wrapped module returns
    unchanged are not among the outputs.
    """

    def __init__(self, module: nn.Module, inputs: InputForm, outputs: OutputForm) -> None:
        super().__init__()
        self.module = module
        self._inputs = inputs
        self._outputs = outputs
        self.is_quantised = False

    def forward(self, *tensors: Any) -> tuple[Any, ...]:
        args, kwargs = self._inputs.arguments(tensors)
        with WithPlainQuantisation() if self.is_quantised else nullcontext():
            result = self.module(*args, **kwargs)
        self._outputs.check_sizes(result)
        # x.float() of a bfloat16 module returns x itself in the float32 copy, but no name of a
        # network is both an input and an output
        return tuple([each.clone() if any(each is tensor for tensor in tensors) else each
                      for each in self._outputs.distinct(result)])


def exported(module: nn.Module, inputs: InputForm, outputs: OutputForm, tensors: Sequence[Any],
             static: str = "") -> Exported:
    """Export a module as a network.

    inputs, outputs: the nesting of tensors in the module's arguments and outputs.
    tensors: the tensors of an example.
    static: why only the example's batch size may be computed; "" if the export decides this.

    Raises UnsupportedError if the control flow of forward depends on the data, if forward writes
    buffers or inputs or draws random numbers, or if an operator cannot be exported.
    """
    wrapped = _Tensors(module, inputs, outputs)
    wrapped.training = module.training
    program, fixed = _program(wrapped, tensors, static)
    if _is_quantised(program):
        # only for quantised modules: under a TorchFunctionMode such as WithPlainQuantisation,
        # torch's messages cannot name the lines of the user's code
        wrapped.is_quantised = True
        program, fixed = _program(wrapped, tensors, static)
    _check_training(program)
    several = not fixed and _differs_at_one(wrapped, program, tensors)
    if several and batch_of(tensors) == 1:
        several = False
        fixed = "forward computes a batch of 1 unlike larger ones, as squeeze() does"
        program = _export(wrapped, tensors, [False] * len(tensors))

    names = inputs.names, _output_names(outputs)
    try:
        try:
            model, program = _from_program(program, *names)
        except Exception as error:
            if fixed:
                raise
            # ONNX cannot express some ops for a free batch size, such as a grouped convolution
            # whose number of groups depends on the batch size
            fixed = _cause(error)
            model, program = _from_program(_export(wrapped, tensors, [False] * len(tensors)),
                                           *names)
    except Exception as error:
        raise UnsupportedError(f"{type(module).__name__} cannot be exported: "
                               f"{_cause(error)}") from error
    _check_written(program, inputs.names)
    model.graph.name = type(module).__name__
    for scopes in (entry for node in model.graph.node for entry in node.metadata_props
                   if entry.key == SCOPES):
        # paths begin with "module", the attribute of _Tensors
        scopes.value = re.sub(r"'module(?:\.|(?='))", "'", scopes.value)
    return Exported(model, program, frozenset(_weights(module)), _tied(module), fixed,
                    several and not fixed, interpolations(model, program))


def _is_quantised(program: Any) -> bool:
    return any("quantize" in str(node.target) for node in program.graph.nodes)


def _output_names(outputs: OutputForm) -> list[str]:
    return [f"output{index}" for index in range(outputs.count)]


def _program(wrapped: nn.Module, tensors: Sequence[Any], reason: str) -> tuple[Any, str]:
    """Export a module's program, with free batch sizes if possible.

    Returns the program, and the reason why no size is free ("" if at least one is).

    reason: why no size may be free; "" if sizes may be free.
    """
    batch = batch_of(tensors)
    free = [bool(tensor.dim()) and tensor.shape[0] == batch for tensor in tensors]
    fixed = [False] * len(tensors)
    # torch.export treats a size of 1 as a constant, so a free size needs at least two images
    several = [torch.cat([tensor, tensor]) if is_free and batch == 1 else tensor
               for tensor, is_free in zip(tensors, free, strict=True)]
    if not any(free):
        return _export(wrapped, tensors, fixed), "no input has a batch dimension"
    if not reason:
        try:
            return _export(wrapped, several, free), ""
        except Exception as error:
            reason = _cause(error)
    try:
        return _export(wrapped, tensors, fixed), reason
    except Exception as error:
        raise UnsupportedError(
            f"{type(wrapped.module).__name__} has no single graph for torch.export: "
            f"{_cause(error)}{line_of(str(error))}; move control flow that depends on the data out "
            "of the module, or use torch.compile(module, backend='gossamer'), which leaves it to "
            "torch") from error


def batch_of(tensors: Sequence[Any]) -> int | None:
    """Return the length of the first axis of the first tensor with axes; None if there is none."""
    return next((tensor.shape[0] for tensor in tensors if tensor.dim()), None)


def _differs_at_one(wrapped: nn.Module, program: Any, tensors: Sequence[Any]) -> bool:
    """Return whether a program computes a batch of 1 unlike its module.

    torch.export takes a free batch size to be 2 or more, and does not record which branches and
    shapes of forward a batch of 1 would have.
    """
    batch = batch_of(tensors)
    one = [tensor[:1] if tensor.dim() and tensor.shape[0] == batch else tensor
           for tensor in tensors]
    with torch.no_grad():
        try:
            expected = wrapped(*[tensor.clone() for tensor in one])
        except Exception:  # the module itself takes no batch of 1
            return False
        try:
            results = plain_module(program)(*[tensor.clone() for tensor in one])
        except Exception:  # a shape of the graph does not fit
            return True
    return any(result.shape != theirs.shape or not normalised_error(
        result.float().cpu().numpy(), theirs.float().cpu().numpy()) <= _LEAST_DIFFERENCE
        for result, theirs in zip(results, expected, strict=True))


def plain_module(program: Any) -> Any:
    """Return the module of an exported program, without checks of its inputs' sizes."""
    options = {"check_guards": False}
    if "check_guards" not in inspect.signature(program.module).parameters:
        options = {}
    module: nn.Module = program.module(**options)
    module._forward_pre_hooks.clear()
    module._forward_hooks.clear()
    return module


def _export(wrapped: nn.Module, tensors: Sequence[Any], free: Sequence[bool]) -> Any:
    # the maximum excludes larger batches, for which torch's CUDA convolutions have a special case
    batch = torch.export.Dim("batch", max=65535)
    shapes = tuple({0: batch} if is_free else None for is_free in free)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(wrapped, tuple(tensors), strict=False,
                                      dynamic_shapes=(shapes,))
    write_squeezes(program)
    return program


def _check_written(program: Any, names: Sequence[str]) -> None:
    """Raise UnsupportedError if a program writes buffers or inputs.

    names: the user's names of the inputs.
    """
    signature = program.graph_signature
    if written := list(signature.buffers_to_mutate.values()):
        buffers = ", ".join(quoted(name.removeprefix(_PREFIX)) for name in written)
        raise UnsupportedError(f"forward writes the buffers {buffers}, but an optimised module has "
                               "no buffers; make them inputs, and return their new values")
    if inputs := list(signature.user_inputs_to_mutate.values()):
        name = names[list(signature.user_inputs).index(inputs[0])]
        raise UnsupportedError(f"forward writes its input {quoted(name)}; change forward to write "
                               "a copy: x = x.clone()")


def _check_training(program: Any) -> None:
    """Raise UnsupportedError for random numbers and training mode.

    A batch_norm that normalises weights is allowed, because its result is the same in each call.
    """
    inputs = set(program.graph_signature.user_inputs)
    varying: set[Any] = set()
    for node in program.graph.nodes:
        if node.name in inputs or any(source in varying for source in node.all_input_nodes):
            varying.add(node)
        name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
        training = _TRAINING.get(name)
        if training is None and not _RANDOM.match(name):
            continue
        if training is not None and not any(node.args[training:training + 1]):
            continue
        if name == "batch_norm" and node not in varying:
            continue
        where = line_of(node.meta.get("stack_trace") or "")
        raise UnsupportedError(f"forward computes {name} as in training{where}; call "
                               "module.eval(), or give random numbers as an input")


def _from_program(program: Any, names: list[str],
                  output_names: list[str]) -> tuple[onnx.ModelProto, Any]:
    """Return the network of a program, and the functional program.

    The functional program writes nothing in place; its nodes have the names of the network's
    values.
    """
    with warnings.catch_warnings(), torch.no_grad(), _quiet_registration():
        warnings.simplefilter("ignore")
        # unoptimised: gossamer folds constants with higher accuracy, and weights keep their names
        export = _exporter(_REGISTERING.intersection(sys.modules))
        result = export(decomposed(program), verbose=False, optimize=False)
    make_plain(result.model)
    set_names(result.model, names, output_names)
    return result.model_proto, result.exported_program


@contextmanager
def _quiet_registration() -> Iterator[None]:
    """Hide the exporter's messages about packages that are not installed."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@cache
def _exporter(registering: frozenset[str]) -> Callable[..., Any]:
    """Return torch's export function with a cached operator table.

    torch.onnx.export builds the table of operators anew in each call, which takes seconds.

    registering: the imported modules of _REGISTERING. The table contains the operators that these
    modules register, so each set of modules has a separate table.
    """
    try:
        from torch.onnx import _constants
        from torch.onnx._internal.exporter import _core, _registration

        opset = _constants.ONNX_DEFAULT_OPSET
        table = _registration.ONNXRegistry.from_torchlib(opset_version=opset)
        if {"registry", "optimize", "opset_version"} <= set(
                inspect.signature(_core.export).parameters):
            return partial(_core.export, registry=table, opset_version=opset)
    except (ImportError, AttributeError, TypeError):  # other versions of torch differ internally
        pass
    return partial(torch.onnx.export, dynamo=True)


def _cause(error: BaseException) -> str:
    """Return the first line of an error's original cause.

    If torch says that the batch size is fixed, a plainer sentence is returned.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    if constant := _CONSTANT_BATCH.search(str(error)):
        return f"torch.export finds that the first dimension always has the size {constant[1]}"
    return first_line(error)


def line_of(text: str) -> str:
    """Return " at FILE:LINE" for a stack trace.

    The line is the last one in the user's code. Returns "" if there is none.
    """
    frames = [(file, line) for file, line in _FRAME.findall(text)
              if not file.startswith(_NOT_THE_USERS)]
    return f" at {frames[-1][0]}:{frames[-1][1]}" if frames else ""
