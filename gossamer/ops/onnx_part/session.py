"""Sessions of ONNX Runtime, which run ONNX models on the host."""

from __future__ import annotations

import functools
import json
import math
import re
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import EncodeError
from onnx import TensorProto, numpy_helper

from gossamer import onnx_model
from gossamer.device.base import Device
from gossamer.device.native.processor import address
from gossamer.errors import InputError, UnsupportedError, first_line, installing, one_line
from gossamer.onnx_model import nodes_of, parsed, with_shapes
from gossamer.ops.algorithm import Algorithm, Variant
from gossamer.ops.host_threads import thread_configs
from gossamer.ops.onnx_part import nan

_LOOPS = frozenset(("Loop", "Scan", "SequenceMap"))
"""Operators that may run for a very long time, or forever."""
_INEXACT = ["ConvMulFusion"]
"""Optimisations of ONNX Runtime that make exact sums of integers inexact, because they multiply a
convolution's weights by the scales that follow the convolution."""
_REWRITE = re.compile(r"\b\w+(?:Fusion|_fusion(?=\.cc))\b")
"""Matches the names of optimisations in error messages of ONNX Runtime. The names of the nodes that
an optimisation creates, and of its source files, contain the optimisation's name."""
_LARGE = 1024
"""Minimum size in bytes of constants that are surely data: shapes, axes and other settings of
operators are always smaller."""

_MOST_BINDINGS = 64
"""Maximum number of bindings that a session keeps."""


class RuntimeAlgorithm(Algorithm):
    """An algorithm that runs sessions of ONNX Runtime on the host."""

    name = "onnxruntime"
    vendor = "ONNX Runtime"

    def version(self, device: Device) -> str:
        if device.compiles or not onnx_model.has_runtime():
            return ""
        return str(onnx_model.runtime().__version__)

    def supports(self, problem: Any, device: Device) -> str | None:
        if device.compiles:
            return "runs on the host only"
        if not onnx_model.has_runtime():
            return f"needs ONNX Runtime: {installing('onnxruntime')}"
        return None

    def variants(self, problem: Any, device: Device) -> Iterable[Variant]:
        return [Variant(config, problem.inputs, problem.outputs) for config in thread_configs()]


class ComputingError(InputError):
    """Raised if ONNX Runtime fails to run a model on the given inputs.

    node: name of the node that failed; "" if it is unknown.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(f"ONNX Runtime: {_why(error)}")
        found = re.search(r"Name:'([^']*)'", str(error))
        self.node = found[1] if found else ""


class Session:
    """A model that is ready to run with ONNX Runtime on the host.

    Operators that compute maxima and minima propagate NaN, which ONNX Runtime itself would ignore.

    model: the model's bytes.
    constants: values of the model's constant inputs, by the inputs' indices.
    shapes: shapes of all inputs of the model; empty if they may differ between runs.
    threads: number of threads per operator; 0 for ONNX Runtime's default.
    optimised: whether ONNX Runtime may optimise the model.
    spinning: whether threads spin while they wait for work, during a run and for up to 50 ms after
    it. By default, threads of ONNX Runtime spin, but the spinning threads of several sessions slow
    each other down.
    profiled: whether to measure the times of nodes.
    inputs, outputs: numbers of inputs and outputs per run.

    Raises UnsupportedError with the reason if ONNX Runtime cannot run the model.
    """

    def __init__(self, model: bytes, constants: Mapping[int, np.ndarray], *,
                 shapes: Sequence[Sequence[int]] = (), threads: int = 1,
                 optimised: bool = True, spinning: bool = False, profiled: bool = False) -> None:
        onnxruntime = onnx_model.runtime()
        proto = parsed(model)
        outputs = len(proto.graph.output)
        try:
            is_watched = nan.losing_nan(proto) and nan.watch(proto)
        except Exception as error:
            # ONNX's inference raises exceptions of any class
            raise UnsupportedError(f"has values of unknown types: {first_line(error)}") from None
        self._constants = _fill(proto, constants, shapes)
        self._profiles = tempfile.TemporaryDirectory() if profiled else None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        options.add_external_initializers(list(self._constants), list(self._constants.values()))
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
        # fusing quantise-dequantise layers into 8-bit layers changes results by more than rounding
        # errors
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        if self._profiles is not None:
            options.enable_profiling = True
            options.profile_file_prefix = f"{self._profiles.name}/nodes"
        self._names = [info.name for info in proto.graph.input]
        self.inputs = len(proto.graph.input)
        self.outputs = outputs
        try:
            self._session = _begun(proto.SerializeToString(), options, optimised)
        except (EncodeError, ValueError):
            raise UnsupportedError("needs more than 2 GiB, the limit of ONNX models in memory"
                                   ) from None
        except Exception as error:
            # the exceptions of ONNX Runtime have no common base class but Exception
            raise UnsupportedError(f"ONNX Runtime does not compute it either: {_why(error)}"
                                   ) from None

        @functools.cache
        def letting_nan() -> Any:
            form = parsed(model)
            nan.let_through(form)
            _fill(form, constants, shapes)
            return _begun(form.SerializeToString(), options, optimised)

        self._letting_nan = letting_nan if is_watched else None
        self._may_last = any(node.op_type in _LOOPS for node in nodes_of(proto))
        self._options = _run_options()
        self._bindings: dict[Hashable, tuple[Any, np.ndarray]] = {}
        """The results of _binding(), by the key of the arrays."""

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the model and return its outputs in order.

        Ctrl-C ends the run, even within loops of the model. Raises ComputingError if the run fails.

        inputs: values of the model's inputs that are not constants, in order.
        """
        return self._outputs(inputs, has_nan=False)

    def run_into(self, key: Hashable,
                 arrays: Callable[[], tuple[list[np.ndarray], list[np.ndarray]]]) -> None:
        """Run the model from arrays into arrays.

        ONNX Runtime reads and writes the memory of float32 arrays without copies. Raises
        ComputingError if the run fails.

        key: identifies the memory of the arrays.
        arrays: function that returns the inputs and the outputs of the model in order. They are
        C-contiguous arrays that do not overlap.
        """
        if key not in self._bindings:
            if len(self._bindings) >= _MOST_BINDINGS:
                self._bindings.clear()
            self._bindings[key] = self._binding(*arrays())
        binding, watched = self._bindings[key]
        if binding is not None:
            try:
                self._session.run_with_iobinding(binding)
            except Exception as error:
                raise ComputingError(error) from None
            if not math.isnan(watched[()]):
                return
        inputs, outputs = arrays()
        results = self._outputs(inputs, has_nan=binding is not None)
        for output, result in zip(outputs, results, strict=True):
            output[...] = result

    def _binding(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
                 ) -> tuple[Any, np.ndarray]:
        """Return a binding to the memory of arrays, and the array that is NaN if NaN was found.

        The binding is None if an array is not float32, or if runs may last forever.
        """
        watched = np.zeros((), np.float32)
        if self._may_last or any(array.dtype != np.float32 for array in (*inputs, *outputs)):
            return None, watched
        binding = self._session.io_binding()
        for name, array in zip(self._names, inputs, strict=True):
            binding.bind_input(name, "cpu", 0, np.float32, array.shape, address(array))
        written = outputs if self._letting_nan is None else [*outputs, watched]
        for info, array in zip(self._session.get_outputs(), written, strict=True):
            binding.bind_output(info.name, "cpu", 0, np.float32, array.shape, address(array))
        return binding, watched

    def node_times(self) -> list[tuple[str, float]]:
        """Return the name and the time in microseconds of each execution of a node.

        The executions of all runs so far are returned in order. The session must be `profiled`.
        This call ends the measurement of times. Raises InputError if ONNX Runtime could not write
        the times.
        """
        assert self._profiles is not None
        try:
            with self._profiles:
                events = json.loads(Path(self._session.end_profiling()).read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"ONNX Runtime could not write the times of layers to "
                             f"{tempfile.gettempdir()} ({first_line(error)}); free space there, or "
                             "set TMPDIR to a folder with free space") from None
        ending = "_kernel_time"
        return [(event["name"].removesuffix(ending), float(event["dur"])) for event in events
                if event.get("cat") == "Node" and event["name"].endswith(ending)]

    def _outputs(self, inputs: Sequence[Any], *, has_nan: bool) -> list[Any]:
        """Return the outputs, as run() does.

        has_nan: whether a run with the same inputs has already found NaN.
        """
        feeds = dict(zip(self._names, inputs, strict=True))
        try:
            results = [] if has_nan else self._results(self._session, feeds)
            if self._letting_nan is not None and (has_nan or math.isnan(results.pop())):
                results = self._results(self._letting_nan(), feeds)
        except Exception as error:
            raise ComputingError(error) from None
        return results

    def _results(self, session: Any, feeds: Mapping[str, Any]) -> list[Any]:
        if not self._may_last or threading.current_thread() is not threading.main_thread():
            return list(session.run(None, feeds, self._options))
        return self._run_in_thread(session, feeds, _run_options())

    def _run_in_thread(self, session: Any, feeds: Mapping[str, Any], options: Any) -> list[Any]:
        """Run a session in another thread, so that Ctrl-C can end the run."""
        future: Future[list[Any]] = Future()

        def run() -> None:
            try:
                future.set_result(session.run(None, feeds, options))
            except BaseException as error:
                future.set_exception(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            return future.result()
        except BaseException:
            # the run failed, or Ctrl-C was pressed
            options.terminate = True
            thread.join()
            raise


def _fill(proto: onnx.ModelProto, constants: Mapping[int, np.ndarray],
          shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Set the constants and shapes of a model.

    Returns the large constants by name. These are not stored in the model: the session reads them
    in place.
    """
    onnxruntime = onnx_model.runtime()
    inputs = list(proto.graph.input)
    # ONNX Runtime needs the shapes to expand operators that ONNX defines as functions
    with_shapes(proto, shapes)
    if any(attribute.name == "ceil_mode" and attribute.i
           for node in nodes_of(proto) for attribute in node.attribute):
        # ONNX's shape inference finds wrong shapes for pools with ceil_mode, and ONNX Runtime would
        # fold these shapes into constants; if input sizes are unknown, no shapes are inferred
        for info in inputs:
            for dim in info.type.tensor_type.shape.dim:
                dim.Clear()
    large = {}
    for index, array in constants.items():
        name = inputs[index].name
        if array.dtype == np.float32 and array.nbytes >= _LARGE:
            tensor = proto.graph.initializer.add(
                name=name, dims=array.shape, data_type=TensorProto.FLOAT,
                data_location=TensorProto.EXTERNAL)
            tensor.external_data.add(key="location", value="memory")
            large[name] = onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
        else:
            proto.graph.initializer.append(numpy_helper.from_array(array, name))
    kept = [info for index, info in enumerate(inputs) if index not in constants]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    return large


def _begun(model: bytes, options: Any, optimised: bool) -> Any:
    """Create a session of ONNX Runtime.

    Optimisations that fail, such as a fusion that creates a node of two dtypes, are disabled.
    Raises ONNX Runtime's error if the model is rejected even without optimisations.
    """
    onnxruntime = onnx_model.runtime()
    left_out = [*_INEXACT]
    while True:
        if not optimised:
            options.graph_optimization_level = (
                onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
        try:
            return onnxruntime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"], disabled_optimizers=left_out,
                # the fallback would print an error and start the same session again
                enable_fallback=0)
        except Exception as error:
            if not optimised:
                raise
            named = {name.title().replace("_", "") if "_" in name else name
                     for name in _REWRITE.findall(str(error))}.difference(left_out)
            left_out += named
            optimised = bool(named)


def _run_options() -> Any:
    options = onnx_model.runtime().RunOptions()
    options.log_severity_level = 4
    return options


def _why(error: Exception) -> str:
    """Return the reason stated in an error of ONNX Runtime.

    The error code and the position in ONNX Runtime's source are removed.
    """
    text = one_line(" ".join(str(error).split())).rpartition("Status Message: ")[2]
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : ", "", text)
    text = re.sub(r"^/\S+:\d+ [^()]*\(.*?\)(?: (?:const|\[with [^\]]*\]))* ", "", text)
    return first_line(ValueError(text))
