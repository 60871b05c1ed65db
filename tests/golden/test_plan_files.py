"""What a saved plan holds, and the messages with which files of plans and of measurements are
refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import reduce
from io import BytesIO
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.errors import GossamerError
from gossamer.model.builder import GraphBuilder
from gossamer.model.formats import with_formats
from gossamer.model.input_format import InputFormat
from gossamer.plan.plan import Plan
from gossamer.plan.store.tuning_file import BadFile, parse
from tests.golden import Golden
from tests.model.onnx_models import weights
from tests.plan.store.test_plan_file import entries, rewrite
from tests.plan.store.tuning_cache.measurements import good_file
from tests.plan.store.tuning_cache.test_bad_files import BAD
from tests.simulated.algorithms import estimated_times, simulated
from tests.simulated.device import HARDWARE, SimulatedDevice

GRAPH, MADE_BY, STEP = "graph.json", ("plan.json", "made_by"), ("choices.json", "1", "steps", 0)
CHANGES: dict[str, tuple[Any, ...]] = {
    "that is older": ("plan.json", "version", 1), "that is newer": ("plan.json", "version", 99),
    "of something else": ("plan.json", "format", "song"), "with notes": (GRAPH, "notes", 7),
    "with a text for notes": (GRAPH, "notes", "text"), "with warnings": (GRAPH, "warnings", [1]),
    "of another chip": ("plan.json", "device", "description", "other"),
    "of other units": ("plan.json", "device", "compute_units", "other"),
    "of another gossamer": (*MADE_BY, "gossamer", "other"),
    **{f"that takes {given}": (GRAPH, "inputs", 0, "given", given)
       for given in ({"dtype": "int7"}, {"layout": "NCWH"}, {"scale": 0})},
    "of another driver": (*MADE_BY, "driver", "other"), "of no toolkit": (*MADE_BY, "toolkit", ""),
    "of other code": (*MADE_BY, "algorithms", "copy strided", "source", "0" * 16),
    "without steps": (*STEP[:3], []), "of another problem": (*STEP, "problem", "0" * 32),
    "of an unknown algorithm": (*STEP, "algorithm", "none"),
    "with code in it": (GRAPH, "nodes", 0, "attributes", "pads", "0; exit()")}


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """The file of a plan of two layers on a simulated GPU, of which one step computes both."""
    build = GraphBuilder("two layers")
    y = build.conv2d(build.input("x", (None, 3, 5, 4)), build.constant("w", weights(4, 3, 3, 3)))
    build.output(build.apply("sigmoid", y), (None, 4, 3, 2))
    graph = with_formats(build.finish(), InputFormat("uint8", "NHWC", 0.5, (1, 2, 4)), "float16")
    with simulated(estimated_times(0)):
        Plan(graph, SimulatedDevice(HARDWARE["h200"])).save(tmp_path / "some.plan")
        yield tmp_path / "some.plan"


def test_a_saved_plan(golden: Golden, path: Path) -> None:
    text = ""
    for name, data in entries(path).items():
        array = np.load(BytesIO(data)) if name.endswith(".npy") else None
        text += f"{name}: " + (data.decode() if array is None else f"{array.dtype} {array.shape}\n")
    # numbers stand in one line, and what differs between versions and machines is left out
    text = re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    golden.text("plan_file.txt", re.sub(
        r'("(?:version|gossamer|description|driver|toolkit)": )("[^"]*"|\d+)'
        r'|(?<=: )"([0-9a-f]{16,}|[\d.]+)"', r"\1...", text))


def test_files_that_are_refused(golden: Golden, path: Path,
                                monkeypatch: pytest.MonkeyPatch) -> None:
    messages: dict[str, str] = {}

    def refuse(name: str, read: Callable[..., Any], *arguments: Any) -> None:
        with pytest.raises((GossamerError, BadFile)) as caught:
            read(*arguments)
        # what Python says, and versions, are left out; of equal messages the first one is kept
        message = re.sub(r"(?<=(?:t short|damaged) \()(?!ValueError|the n).*?(?=\)(;|$))"
                         r"|(?<=reads )\d+|(?<=\(format )\d+|(?<=this is )[\d.]+", "...",
                         str(caught.value).replace(str(path), "FILE"))
        if message not in messages.values():
            messages[name] = message

    device, whole = SimulatedDevice(HARDWARE["h200"]), path.read_bytes()
    refuse("a plan for another device", Plan.load, path, SimulatedDevice(HARDWARE["sm_75"]))
    for name, (entry, *keys, value) in CHANGES.items():
        def changed(content: Any, keys: list[Any] = keys, value: Any = value) -> Any:
            reduce(getitem, keys[:-1], content)[keys[-1]] = value
            return content

        path.write_bytes(whole)
        rewrite(path, entry, changed)
        refuse(f"a plan {name}", Plan.load, path, device)
    path.write_bytes(whole[:-99])
    refuse("a plan that is cut", Plan.load, path, device)
    path.unlink()
    refuse("a plan that is not there", Plan.load, path, device)
    monkeypatch.setattr("gossamer.plan.store.tuning_cache._source", lambda *_: "source")
    for name, (damage, _) in BAD.items():
        refuse(f"measurements, {name}", parse, damage(good_file(path.parent)[1]))
    golden.table("errors.txt", "plan files", messages)
