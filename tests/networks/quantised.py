"""Runs quantised networks on a device beside ONNX Runtime, and beside the float network in float16.

    python -m tests.networks.quantised FOLDER --device cuda:0 --batch 64 -o ROWS.jsonl

python -m tests.networks.quantise has written FOLDER. For each network and form a row is appended to
ROWS.jsonl; what is in it is not run again. Rows of quantised forms have

- how many of the network's integers, layer by layer, equal those of ONNX Runtime where each layer
  is given ONNX Runtime's own inputs: the smallest share of a layer and the largest difference,
  which decide whether the outcome is "ok" or "differs";
- how far the results of the whole network are from those of ONNX Runtime without optimisations, on
  how many photos both have the same class, and the same of ONNX Runtime with all optimisations;
- the microseconds of an execution and of a call with arrays of the host, and how many times as long
  as the float network's plan in float16 an execution takes.

The exit code is 1 where a network crashed or differs.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

import gossamer
from gossamer.plan.plan import Plan
from tests.networks.compared import outcome_of, outside, results_of, session_of
from tests.networks.packed import SUFFIX, networks_in, restored
from tests.networks.rows import parsed, parser_of, rows_of, run_all

FLOAT = "float"
FORMS = (FLOAT, "qdq", "qoperator")
_EQUAL = 0.999
"""The smallest share of a layer's integers that equal ONNX Runtime's."""
_STEPS = 1
"""The largest difference of two integers."""
_PHOTOS_OF_LAYERS = 2
_SLOWEST = 6


def run(path: Path, form: str, batch: int, device: str, effort: str, budget: float
        ) -> dict[str, Any]:
    """Returns what became of one form of a network."""
    warnings.simplefilter("ignore")
    try:
        model = restored(path)
        photos = photos_of(path.with_name(path.name.removesuffix(f"-{form}{SUFFIX}") + ".npz"))
        x = np.resize(photos, (batch, *photos.shape[1:]))
        settings: dict[str, Any] = {"effort": effort, "budget": budget}
        with gossamer.compile(model, device, precision="fp16" if form == FLOAT else None,
                              **settings) as plan:
            y = np.asarray(plan(x))
            row = {"outcome": "ok", **_times(plan, batch)}
        if form != FLOAT:
            count = min(batch, len(photos))
            row |= _beside_onnxruntime(model, photos[:count], y[:count])
            layers = equal_layers(model, photos[:_PHOTOS_OF_LAYERS], device, **settings)
            (equal, equal_layer), (steps, steps_layer) = min(
                (share, name) for name, share, _ in layers), max(
                (largest, name) for name, _, largest in layers)
            row |= {"compared_layers": len(layers), "equal": equal, "equal_layer": equal_layer,
                    "steps": steps, "steps_layer": steps_layer,
                    "outcome": "ok" if equal >= _EQUAL and steps <= _STEPS else "differs"}
        return row
    except Exception as error:
        return {"outcome": outcome_of(error)}


def photos_of(path: Path) -> np.ndarray:
    """Returns the inputs that python -m tests.networks.quantise has written."""
    with np.load(path) as file:
        pixels = file["pixels"].astype(np.float32)
        photos = (pixels * file["scale"] - file["mean"]) / file["std"]
    return np.ascontiguousarray(photos.transpose(0, 3, 1, 2), np.float32)


def _times(plan: Plan, batch: int) -> dict[str, Any]:
    report = plan.profile(batch)
    slowest = sorted(report.rows, key=lambda row: -(row["median_us"] or 0))[:_SLOWEST]
    return {"us": report.end_to_end_us, "call_us": report.call_us,
            **outside(report, plan.device.name),
            "precisions": Counter(row["precision"] for row in report.rows),
            "slowest": [[row["layer"], row["algorithm"], row["median_us"]] for row in slowest]}


def _beside_onnxruntime(model: onnx.ModelProto, photos: np.ndarray, y: np.ndarray
                        ) -> dict[str, Any]:
    plain, optimised = (_of_onnxruntime(model, photos, is_optimised=is_optimised)
                        for is_optimised in (False, True))
    return {"photos": len(photos), "error": _mean_error(y, plain),
            "onnxruntime_error": _mean_error(optimised, plain),
            "same_class": _same_classes(y, plain),
            "onnxruntime_same_class": _same_classes(optimised, plain)}


def _of_onnxruntime(model: onnx.ModelProto, photos: np.ndarray, *, is_optimised: bool
                    ) -> np.ndarray:
    session = session_of(model, is_optimised=is_optimised)
    name = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {name: photo[None]})[0] for photo in photos])


def _mean_error(y: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(y - expected).mean() / np.abs(expected).mean())


def _same_classes(y: np.ndarray, expected: np.ndarray) -> int:
    classes = (array.reshape(len(array), -1).argmax(1) for array in (y, expected))
    return int(np.equal(*classes).sum())


def equal_layers(model: onnx.ModelProto, x: np.ndarray, device: str, **settings: Any
                 ) -> list[tuple[str, float, int]]:
    """Returns for each quantised layer its name, the share of its integers that equal those of ONNX
    Runtime without optimisations, and the largest difference, where all layers are given ONNX
    Runtime's own inputs. settings: those of gossamer.compile."""
    given, expected = own_inputs(model, x)
    with gossamer.compile(with_own_inputs(model, expected), device, **settings) as plan:
        found = dict(zip((info.name for info in plan.outputs), results_of(plan, given),
                         strict=True))
    rows = []
    for name, integers in expected.items():
        difference = np.abs(found[name].astype(np.int64) - integers)
        rows.append((name, float((difference == 0).mean()), int(difference.max())))
    return rows


def _tasks(files: list[Path], options: argparse.Namespace
           ) -> Iterator[tuple[dict[str, Any], tuple[Any, ...]]]:
    for path in files:
        form = next(form for form in FORMS if path.name.endswith(f"-{form}{SUFFIX}"))
        key = {"network": path.name.removesuffix(f"-{form}{SUFFIX}"), "form": form,
               "batch": options.batch, "device": options.device, "effort": options.effort}
        yield key, (path, form, options.batch, options.device, options.effort, options.budget)


def ratios(rows: list[dict[str, Any]]) -> list[str]:
    """Returns for each quantised network how its time compares with that of the float network."""
    place = ("network", "batch", "device", "effort")
    float16 = {tuple(row[key] for key in place): row["us"] for row in rows
               if row["form"] == FLOAT and "us" in row}
    return [f"{row['network']}, {row['form']}, batch {row['batch']} on {row['device']}: "
            f"{row['us']:.0f} us, {row['us'] / base:.2f} times the float network's in float16"
            for row in rows if row["form"] != FLOAT and "us" in row
            and (base := float16.get(tuple(row[key] for key in place)))]


def main() -> int:
    parser = parser_of("tests.networks.quantised", __doc__, budget=8)
    parser.add_argument("--batch", type=int, default=64)
    options = parsed(parser)
    files = [path for path in networks_in(options.folder, options.only)
             if path.name.endswith(tuple(f"-{form}{SUFFIX}" for form in FORMS))]
    if not files:
        parser.error(f"no file {options.folder}/**/*{options.only}*-FORM{SUFFIX}, where FORM is "
                     f"one of {', '.join(FORMS)}; python -m tests.networks.quantise writes them")
    code = run_all(_tasks(files, options), run, options.output, options.minutes)
    for line in ratios(rows_of(options.output)):
        print(line)
    return code


if __name__ == "__main__":
    sys.exit(main())


_GIVEN = "given "


def quantised_values(model: onnx.ModelProto) -> list[str]:
    """Returns the names of the values that quantised layers make: the results of QuantizeLinear,
    which ends a layer of the form QDQ, and of operators on integers, such as QLinearConv."""
    return [node.output[0] for node in model.graph.node
            if node.op_type in ("QuantizeLinear", "QGemm") or node.op_type.startswith("QLinear")]


def own_inputs(model: onnx.ModelProto, x: np.ndarray
               ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the inputs of with_own_inputs() and its results, as ONNX Runtime computes them
    without optimisations. x: the network's input."""
    names = quantised_values(model)
    told = onnx.ModelProto()
    told.CopyFrom(model)
    told.graph.ClearField("output")
    told.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = session_of(told, is_optimised=False)
    (info,) = session.get_inputs()
    expected = dict(zip(names, session.run(None, {info.name: x}), strict=True))
    return {info.name: x, **{_GIVEN + name: array for name, array in expected.items()}}, expected


def with_own_inputs(model: onnx.ModelProto, expected: Mapping[str, np.ndarray]
                    ) -> onnx.ModelProto:
    """Returns a network whose results are all values that quantised layers make, and whose layers
    read inputs in their place. expected: arrays like those values."""
    cut = onnx.ModelProto()
    cut.CopyFrom(model)
    cut.graph.ClearField("output")
    for node in cut.graph.node:
        for index, name in enumerate(node.input):
            if name in expected:
                node.input[index] = _GIVEN + name
    for name, array in expected.items():
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        shape = ["N", *array.shape[1:]]
        cut.graph.output.append(helper.make_tensor_value_info(name, dtype, shape))
        if any(_GIVEN + name in node.input for node in cut.graph.node):
            cut.graph.input.append(helper.make_tensor_value_info(_GIVEN + name, dtype, shape))
    return cut
