"""Saved plans and files of measurements with a part that is missing or wrong are refused, or read,
as was recorded."""

from __future__ import annotations

import copy
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gossamer.errors import GossamerError
from gossamer.measure import Timing
from gossamer.model.builder import GraphBuilder
from gossamer.model.formats import with_formats
from gossamer.model.input_format import InputFormat
from gossamer.plan.measurement import Measurement
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy
from gossamer.plan.store import plan_file
from gossamer.plan.store.tuning_file import (
    VERSION,
    BadFile,
    candidate_key,
    count,
    decode,
    decode_plan,
    encode,
    encode_plan,
    parse,
    text,
)
from tests.model.onnx_models import weights
from tests.recorded import Recorded, as_text
from tests.simulated.algorithms import estimated_times, simulated
from tests.simulated.device import HARDWARE, SimulatedDevice
from tests.simulated.traced import traced

WRONG: tuple[Any, ...] = (None, "", "some text", -1, 0, 1.5, [], {}, True)
_PYTHONS_OWN = re.compile(r"\((TypeError|KeyError|AttributeError|IndexError): .*\); ")
"""Matches Python's own words for an error, which differ between its versions."""


def _said(error: Exception, path: Path) -> str:
    return _PYTHONS_OWN.sub(r"(\1); ", str(error).replace(str(path), "FILE"))


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The JSON values and the other entries of a saved plan of two layers and two batch sizes."""
    build = GraphBuilder("two layers")
    x = build.input("x", (None, 3, 5, 4))
    y = build.apply("sigmoid", build.conv2d(x, build.constant("w", weights(4, 3, 3, 3)),
                                            pads=(1, 1, 1, 1)))
    build.output(y, (None, 4, 5, 4))
    graph = with_formats(build.finish(), InputFormat("uint8", "NHWC", 0.5, 1.0, (1.0, 2.0, 4.0)),
                         "float16")
    path = tmp_path_factory.mktemp("plan") / "some.plan"
    with simulated(estimated_times(0)), traced():
        plan = Plan(graph, SimulatedDevice(HARDWARE["h200"]), Policy())
        plan.program(1)
        plan.program(3)
        plan.save(path)
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    values = {name: json.loads(data) for name, data in content.items() if name.endswith(".json")}
    return values, {name: data for name, data in content.items() if name not in values}


def _write(path: Path, values: Mapping[str, Any], others: Mapping[str, bytes],
           compressed: str = "") -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in values.items():
            archive.writestr(name, json.dumps(value),
                             zipfile.ZIP_DEFLATED if name == compressed else zipfile.ZIP_STORED)
        for name, data in others.items():
            archive.writestr(name, data)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the place of each value within JSON values; of a list only the first and the last."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, each in value.items():
            yield from places(each, (*path, key))
    elif isinstance(value, list):
        for index in sorted({0, len(value) - 1} if value else ()):
            yield from places(value[index], (*path, index))


def changed(value: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    """Returns a copy with a change at a place."""
    result = copy.deepcopy(value)
    inner = result
    for key in path[:-1]:
        inner = inner[key]
    change(inner, path[-1])
    return result


def _opened(path: Path, device: SimulatedDevice, *, whole: bool) -> str:
    """Returns what opening a file gives: without the programs, or with them."""
    try:
        if whole:
            plan = Plan.load(path, device)
            return (f"{plan.planned_batches} {[info.name for info in plan.inputs]} "
                    f"{plan.report(1).notes[-1]} {plan.report(2).notes}".replace(str(path), "FILE"))
        head, graph, _ = plan_file.read(path)
        with plan_file.checked(path):
            notices = plan_file.check_device(path, head, device)
        return f"read {graph.name} {len(graph.nodes)} {notices}".replace(str(path), "FILE")
    except GossamerError as error:
        return _said(error, path)


def test_plans_with_a_wrong_part(recorded: Recorded, tmp_path: Path,
                                 parts: tuple[dict[str, Any], dict[str, bytes]]) -> None:
    values, others = parts
    path, texts = tmp_path / "some.plan", {}
    device = SimulatedDevice(HARDWARE["h200"])
    with simulated(estimated_times(0)), traced():
        _write(path, values, others)
        texts["whole"] = _opened(path, device, whole=True)
        for name in values:
            _write(path, {key: value for key, value in values.items() if key != name}, others)
            texts[f"without {name}"] = _opened(path, device, whole=True)
            _write(path, values, others, compressed=name)
            texts[f"compressed {name}"] = _opened(path, device, whole=True)
        _write(path, values, {})
        texts["without weights"] = _opened(path, device, whole=True)
        for name, value in values.items():
            whole = name == "choices.json"
            for number, place in enumerate(places(value)):
                def remove(inner: Any, key: Any) -> None:
                    del inner[key]

                wrong = WRONG[number % len(WRONG)]

                def put(inner: Any, key: Any, wrong: Any = wrong) -> None:
                    inner[key] = wrong

                for what, change in (("without", remove), (f"{wrong!r} as", put)):
                    _write(path, {**values, name: changed(value, place, change)}, others)
                    case = f"{what} {name} {'/'.join(map(str, place))}".replace(": ", " ")
                    texts[case] = _opened(path, device, whole=whole)
        for name in HARDWARE:
            _write(path, values, others)
            texts[f"opened for {name}"] = _opened(
                path, SimulatedDevice(HARDWARE[name]), whole=True)
    recorded("plan_files", texts)


def _measured(**fields: Any) -> Measurement:
    return Measurement("tiled", "a=1", ("NCHW",), ("NHWC",), "fp32", **fields)


MEASURED = (_measured(median_us=1.5, p25_us=1.0, p75_us=2.0, cold_us=3.0, error=1e-7, samples=5,
                      weights="ab", build_s=0.5, device_bytes=12),
            _measured(failure="it failed"), _measured(median_us=1.0, error=float("inf")),
            _measured(failure="not tried: slow", not_tried=True, search="key"))


def test_lines_of_measurements(recorded: Recorded) -> None:
    texts = {}

    def outcome(function: Callable[[Any], Any], line: Any) -> str:
        try:
            return as_text(function(line))
        except ValueError as error:
            return str(error)

    for number, measured in enumerate(MEASURED):
        line = encode("conv2d", "source", measured)
        key = candidate_key("problem", measured)
        texts[f"{number}"] = f"{json.dumps(line)} {key}"
        assert decode(line) == measured
        for name in line:
            for wrong in WRONG if not number else ("", -1, True):
                texts[f"{number} {name} {wrong!r}"] = outcome(decode, {**line, name: wrong})
            texts[f"{number} without {name}"] = outcome(
                decode, {key: value for key, value in line.items() if key != name})
        texts[f"{number} and more"] = outcome(decode, {**line, "more": 1})
    plan = encode_plan("some plan", Timing(1.23456, 1.0, 2.0, 5))
    for name in plan:
        for wrong in WRONG:
            texts[f"plan {name} {wrong!r}"] = outcome(decode_plan, {**plan, name: wrong})
    recorded("measurement_lines", texts)


def test_files_of_measurements(recorded: Recorded) -> None:
    section = {"made_by": {"driver": "1", "toolkit": ""},
               "candidates": {candidate_key("problem", each): encode("p", "source", each)
                              for each in MEASURED[:2]},
               "plans": {"key": encode_plan("plan", Timing(1.0, 1.0, 1.0, 1))},
               "checks": {"key": "tiled"}}
    content = {"format": "gossamer measurements", "version": VERSION,
               "device": {"api": "cuda", "description": "H200", "compute_units": 132},
               "sections": [section]}
    assert parse(text(content)) == content
    texts = {"count": as_text([count(section), count({}), count({"plans": {}})])}

    def outcome(value: Any) -> str:
        try:
            return f"read {len(parse(json.dumps(value).encode())['sections'])}"
        except BadFile as bad:
            said = re.sub(r"\((TypeError|KeyError|AttributeError): .*\)", r"(\1)", str(bad))
            return f"{bad.kind}: {said}"

    for place in places(content):
        def remove(inner: Any, key: Any) -> None:
            del inner[key]

        name = "/".join(map(str, place)).replace(": ", " ")
        texts[f"without {name}"] = outcome(changed(content, place, remove))
        for wrong in (None, "some text", -1):
            def put(inner: Any, key: Any, wrong: Any = wrong) -> None:
                inner[key] = wrong

            texts[f"{wrong!r} as {name}"] = outcome(changed(content, place, put))
    for version in (VERSION - 1, VERSION, VERSION + 1, 10**30):
        texts[f"version {version}"] = outcome({**content, "version": version})
    recorded("measurement_files", texts)
