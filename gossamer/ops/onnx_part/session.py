"""ONNX Runtime's sessions: models that are written from a checked graph, and run on the host."""

from __future__ import annotations

import json
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError, EncodeError
from onnx import TensorProto, numpy_helper

from gossamer import host_library
from gossamer.device.base import Device
from gossamer.errors import InputError, UnsupportedError, first_line, one_line

_LOOPS = frozenset(("Loop", "Scan", "SequenceMap"))
"""Operators that may run for ever, or for very long."""
_INEXACT = ["ConvMulFusion"]
"""Rewrites of ONNX Runtime that round sums of integers: the scales behind convolutions would become
factors of the weights."""
_LARGE = 1024
"""Bytes of a constant that no operator takes as a shape, an axis or another setting."""


def version_on(device: Device) -> str:
    """Returns the version of ONNX Runtime where it computes for a device; "" where it does not."""
    if device.compiles or not host_library.is_installed():
        return ""
    return str(host_library.onnxruntime().__version__)


class ComputingError(InputError):
    """What ONNX Runtime cannot compute of the values that it was given.

    node: the name of the model's node that cannot compute them; "" where it is not known.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(f"ONNX Runtime: {_why(error)}")
        found = re.search(r"Name:'([^']*)'", str(error))
        self.node = found[1] if found else ""


class Session:
    """A model that is ready to run with ONNX Runtime on the host.

    model: the model's bytes.
    constants: values of inputs of the model that are the same in each call, by the inputs' numbers.
    shapes: shapes of all inputs, where they are the same in each call.
    threads: threads of an operator; 0 lets ONNX Runtime choose.
    optimised: whether ONNX Runtime may rewrite the model.
    spinning: whether threads keep their processors while they wait for work, also between runs.
    profiled: whether times of nodes are taken.
    inputs, outputs: how many values a run takes and gives.
    Raises UnsupportedError that says why ONNX Runtime does not run it.
    """

    def __init__(self, model: bytes, constants: Mapping[int, np.ndarray], *,
                 shapes: Sequence[Sequence[int]] = (), threads: int = 1,
                 optimised: bool = True, spinning: bool = False, profiled: bool = False) -> None:
        onnxruntime = host_library.onnxruntime()
        proto = _checked(model)
        inputs = list(proto.graph.input)
        # operators that are functions of others are taken apart by their shapes
        for info, shape in zip(inputs, shapes, strict=False):
            info.type.tensor_type.ClearField("shape")
            info.type.tensor_type.shape.SetInParent()
            for size in shape:
                info.type.tensor_type.shape.dim.add(dim_value=size)
        # large constants stay where they are, without a copy
        self._constants = {}
        for index, array in constants.items():
            name = inputs[index].name
            if array.dtype == np.float32 and array.nbytes >= _LARGE:
                tensor = proto.graph.initializer.add(
                    name=name, dims=array.shape, data_type=TensorProto.FLOAT,
                    data_location=TensorProto.EXTERNAL)
                tensor.external_data.add(key="location", value="memory")
                self._constants[name] = onnxruntime.OrtValue.ortvalue_from_numpy(
                    np.ascontiguousarray(array))
            else:
                proto.graph.initializer.append(numpy_helper.from_array(array, name))
        kept = [info for index, info in enumerate(inputs) if index not in constants]
        del proto.graph.input[:]
        proto.graph.input.extend(kept)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        options.add_external_initializers(list(self._constants), list(self._constants.values()))
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
        self._profiles = tempfile.TemporaryDirectory() if profiled else None
        if self._profiles is not None:
            options.enable_profiling = True
            options.profile_file_prefix = f"{self._profiles.name}/nodes"
        if not optimised:
            options.graph_optimization_level = (
                onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
        try:
            self._session = onnxruntime.InferenceSession(
                proto.SerializeToString(), options, providers=["CPUExecutionProvider"],
                disabled_optimizers=_INEXACT,
                # it would print an error, and try the same again
                enable_fallback=0)
        except (EncodeError, ValueError):
            raise UnsupportedError("takes more than 2 GiB, which no ONNX model in memory may"
                                   ) from None
        except Exception as error:
            # ONNX Runtime's errors have no class of their own in common
            raise UnsupportedError(f"ONNX Runtime does not compute it either: {_why(error)}"
                                   ) from None
        self._names = [info.name for info in kept]
        self.inputs = len(kept)
        self.outputs = len(proto.graph.output)
        self._may_last = any(node.op_type in _LOOPS for node in _nodes(proto))
        self._options = _run_options()

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Returns the outputs for the inputs that are no constants, in the model's order. Ctrl-C
        ends it, within loops too. Raises ComputingError."""
        feeds = dict(zip(self._names, inputs, strict=True))
        try:
            if not self._may_last or threading.current_thread() is not threading.main_thread():
                return self._session.run(None, feeds, self._options)
            return self._run_beside(feeds, _run_options())
        except Exception as error:
            raise ComputingError(error) from None

    def node_times(self) -> list[tuple[str, float]]:
        """Returns the names of nodes, and the microseconds that each took, in the order of all runs
        so far. The session must take these times; it takes none from then on."""
        events = json.loads(Path(self._session.end_profiling()).read_text())
        ending = "_kernel_time"
        return [(event["name"].removesuffix(ending), float(event["dur"])) for event in events
                if event.get("cat") == "Node" and event["name"].endswith(ending)]

    def _run_beside(self, feeds: Mapping[str, Any], options: Any) -> list[Any]:
        """Runs the model in another thread, so that this one can end it."""
        future: Future[list[Any]] = Future()

        def run() -> None:
            try:
                future.set_result(self._session.run(None, feeds, options))
            except BaseException as error:
                future.set_exception(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            return future.result()
        except BaseException:
            # an error of the model itself, or Ctrl-C
            options.terminate = True
            thread.join()
            raise


def _run_options() -> Any:
    options = host_library.onnxruntime().RunOptions()
    options.log_severity_level = 4
    return options


def _checked(model: bytes) -> onnx.ModelProto:
    """Returns the model. Raises UnsupportedError for one that names another file, since anybody may
    have written a saved plan."""
    try:
        proto = onnx.load_model_from_string(model)
    except DecodeError:
        raise UnsupportedError("the model of a part is damaged") from None
    for tensor in _tensors(proto):
        if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
            raise UnsupportedError("the model of a part names another file")
    return proto


def _nodes(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yields the nodes of a model, those of functions and of inner graphs included."""
    waiting = [*proto.graph.node, *(node for function in proto.functions for node in function.node)]
    while waiting:
        node = waiting.pop()
        yield node
        for attribute in node.attribute:
            waiting += (inner for graph in (attribute.g, *attribute.graphs) for inner in graph.node)


def _tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yields the tensors of a model, those of functions and of inner graphs included."""
    graphs = [proto.graph]
    for node in _nodes(proto):
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            graphs += (attribute.g, *attribute.graphs)
    for graph in graphs:
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)


def _why(error: Exception) -> str:
    """Returns ONNX Runtime's reason without its number and the place in its source."""
    text = one_line(str(error).strip()).rpartition("Status Message: ")[2]
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : ", "", text)
    text = re.sub(r"^/\S+:\d+ [^()]*\(.*?\)(?: (?:const|\[with [^\]]*\]))* ", "", text)
    return first_line(ValueError(text.removesuffix("\\n")))
