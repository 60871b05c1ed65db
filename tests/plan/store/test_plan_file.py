"""Saved plans: the same outputs without measuring, and an error in one line for every bad file."""

from __future__ import annotations

import io
import json
import random
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from onnx import TensorProto, helper

import gossamer
from gossamer.device import blas
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import GossamerError, InputError
from gossamer.expression import Expression, ExpressionStep
from gossamer.model.graph import Graph, Node, ValueInfo
from gossamer.ops.conv2d.host import HostIm2col
from gossamer.ops.conv2d.vendor.cudnn import Cudnn
from gossamer.plan.plan import Plan
from gossamer.plan.store import plan_file
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.tuner import Tuner
from tests.model.onnx_models import model, weights
from tests.plan.small import assert_close, compiled, expected, images, reloaded, save, small


@pytest.fixture
def measured(quick_device: Device, tmp_path: Path) -> Callable[[], Plan]:
    """Returns a function that makes a measured plan for batches 1 and 4."""
    path = save(small(), tmp_path)

    def make() -> Plan:
        tuner = Tuner(quick_device, "quick", cache=TuningCache(quick_device, tmp_path / "tuning"))
        plan = Plan(gossamer.load(str(path)), quick_device, tuner=tuner)
        plan.program(1)
        plan.program(4)
        return plan

    return make


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A saved plan for the host."""
    plan = gossamer.compile(str(save(small(), tmp_path)), "host")
    plan.save(tmp_path / "small.plan")
    return tmp_path / "small.plan"


def choices(plan: Plan, batch: int) -> list[tuple[Any, ...]]:
    return [(step.layer.name, step.algorithm.name, step.variant, step.device, step.inputs,
             step.outputs, step.rejected) for step in plan.program(batch).steps]


def entries(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rewrite(path: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Changes one JSON entry of a saved plan."""
    content = entries(path)
    content[name] = json.dumps(change(json.loads(content[name]))).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for entry, data in content.items():
            archive.writestr(entry, data)


def test_a_loaded_plan_gives_the_same_bits_and_measures_nothing(
        measured: Callable[[], Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = measured()
    plan.save(tmp_path / "a.plan")
    monkeypatch.setattr(Tuner, "measure_all", None)
    monkeypatch.setattr(TuningCache, "get", None)
    loaded = gossamer.Plan.load(str(tmp_path / "a.plan"))
    assert loaded.tuner is None and loaded.device is plan.device
    assert loaded.planned_batches == [1, 4]
    for batch in (1, 4):
        assert choices(loaded, batch) == choices(plan, batch)
        x = images(batch)
        assert_close(loaded(x), expected(x))
        np.testing.assert_array_equal(loaded(x).view(np.uint32), plan(x).view(np.uint32))
        # of other programs, which may be busy while this runs, only the plan that measured tells
        assert loaded.report().notes == [
            note for note in plan.report().notes if "compile again when" not in note]


def test_a_second_plan_and_a_second_save_write_the_same_file(
        measured: Callable[[], Plan], tmp_path: Path) -> None:
    first, second = measured(), measured()
    assert second.tuner is not None and second.tuner.measured == 0
    first.save(tmp_path / "first.plan")
    second.save(tmp_path / "second.plan")
    Plan.load(tmp_path / "first.plan").save(tmp_path / "third.plan")
    assert set(entries(tmp_path / "first.plan")) >= {"plan.json", "graph.json", "choices.json",
                                                     "weights/0.npy"}
    first_bytes = (tmp_path / "first.plan").read_bytes()
    for name in ("second", "third"):
        assert (tmp_path / f"{name}.plan").read_bytes() == first_bytes
    assert "date" not in json.loads(entries(tmp_path / "first.plan")["plan.json"])


def test_an_empty_batch_has_choices_of_its_own(tmp_path: Path) -> None:
    plan = compiled(small(), find("host"), tmp_path)
    for batch in (1, 0):
        plan.program(batch)
    loaded = reloaded(plan, tmp_path)
    assert loaded.planned_batches == [0, 1]
    for batch in (0, 1):
        assert_close(loaded(images(batch)), expected(images(batch)))


def test_another_batch_takes_the_nearest_choices_and_says_so(
        measured: Callable[[], Plan], tmp_path: Path) -> None:
    plan = measured()
    loaded = reloaded(plan, tmp_path)
    for batch, nearest in ((3, 4), (2, 1), (9, 4)):
        x = images(batch)
        assert_close(loaded(x), expected(x))
        (note,) = [line for line in loaded.report().notes if "not planned" in line]
        start = f"batch {batch} was not planned: the choices are those of batch {nearest}"
        assert note.startswith(start)
        # the algorithm or config of a product of few rows may not exist for more rows
        assert note[len(start):] in ("", ", except for classes, for which they are not valid")
        loaded_choices, choices_of_nearest = (
            {step.layer.name: (step.algorithm, step.variant.config_text) for step in steps
             if step.layer.name != "classes" and not step.layer.inserted}
            for steps in (loaded.program(batch).steps, plan.program(nearest).steps))
        assert loaded_choices == choices_of_nearest
    assert reloaded(loaded, tmp_path).planned_batches == [1, 4]


def test_a_choice_that_does_not_fit_another_batch_is_replaced_and_named(file: Path) -> None:
    def spoil(plain: Any) -> Any:
        plain["2"] = plain.pop("1")
        for step in plain["2"]["steps"]:
            step["config"] += " spoilt=1"
        return plain

    assert Plan.load(file).planned_batches == [1]
    rewrite(file, "choices.json", spoil)
    plan = plan_file_without_check(file)
    x = images(1)
    assert_close(plan(x), expected(x))
    (note,) = [line for line in plan.report().notes if "not planned" in line]
    assert note.startswith("batch 1 was not planned: the choices are those of batch 2, except for "
                           "first, ")
    with pytest.raises(InputError, match=r"small.plan: Conv 'first' cannot be computed as planned"):
        Plan.load(file)


def plan_file_without_check(path: Path) -> Plan:
    """Returns a loaded plan whose choices were not tested by building programs."""
    from gossamer.device.registry import find
    from gossamer.plan.choose.saved_options import StoredChoices

    _, graph, plain = plan_file.read(path)
    return Plan(graph, find("host"), choices=StoredChoices(path, plain))


def test_equal_weights_are_stored_once_and_exactly(tmp_path: Path) -> None:
    shared = weights(4, 4, 3, 3)
    shared[0, 0, 0] = [np.nan, np.inf, -0.0]
    node = helper.make_node
    proto = model([node("Conv", ["x", "a"], ["t"], pads=[1, 1, 1, 1]),
                   node("MaxPool", ["t"], ["p"], kernel_shape=[1, 1]),
                   node("Conv", ["p", "b"], ["y"], pads=[1, 1, 1, 1])],
                  {"x": ["N", 4, 5, 5]}, {"y": 4}, {"a": shared, "b": shared.copy()})
    plan = gossamer.compile(str(save(proto, tmp_path)), "host")
    loaded = reloaded(plan, tmp_path)
    for name, array in plan.graph.constants.items():
        assert loaded.graph.constants[name].tobytes() == array.tobytes()
    shapes = [np.load(io.BytesIO(data)).shape
              for name, data in entries(tmp_path / "saved.plan").items() if name.endswith(".npy")]
    assert shapes.count((4, 4, 3, 3)) == 1


def test_every_kind_of_attribute_comes_back(tmp_path: Path) -> None:
    expression = Expression(1, (ExpressionStep("clip", (0,), (0.1, float("inf"))),
                                ExpressionStep("leaky_relu", (1,), (np.float32(0.1),))))
    attributes = {"a": 1, "b": True, "c": None, "d": 0.1, "e": float("-inf"), "f": "text",
                  "g": (1, (2, "x")), "h": [1.5, (2,)], "i": expression, "j": np.int64(7)}
    graph = Graph("n", [ValueInfo("x", (None, 3), "float32", ("N", ""))],
                  [ValueInfo("y", (None, 3))],
                  [Node("elementwise", "one", ["x"], ["y"], attributes, "Odd 'one'")],
                  {"w": np.asfortranarray(weights(3, 4)), "s": np.array(3, np.int64),
                   "e": np.zeros((0, 2), np.float32), "t": np.array([True, False])},
                  "file.onnx", ["mind the gap"], ["a note"], fixed_batch=2)
    plan_file.write(tmp_path / "a.plan", {
        "format": plan_file.FORMAT, "version": plan_file.VERSION,
        "made_by": {"gossamer": gossamer.__version__}}, graph, {})
    _, read, _ = plan_file.read(tmp_path / "a.plan")
    assert read.nodes == graph.nodes
    for name, value in attributes.items():
        assert type(read.nodes[0].attributes[name]) is type(value)
    assert {**vars(read), "constants": None} == {**vars(graph), "constants": None,
                                                 "file": str(tmp_path / "a.plan")}
    for name, array in graph.constants.items():
        other = read.constants[name]
        assert (other.dtype, other.shape, other.flags.f_contiguous) == (
            array.dtype, array.shape, array.flags.f_contiguous)
        assert other.tobytes() == array.tobytes()


def test_a_save_that_fails_leaves_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, before = Plan.load(file), file.read_bytes()
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(zipfile.ZipFile, "writestr", Mock(side_effect=full))
    with pytest.raises(InputError, match=r"small.plan: cannot be written: No space left"):
        plan.save(file)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir() if "plan" in path.name] == ["small.plan"]
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"absent/a.plan: cannot be written"):
        plan.save(file.parent / "absent" / "a.plan")


@pytest.mark.parametrize("threads", [1, "all"])
@pytest.mark.parametrize(("made_with", "runs_with"), [(2, 1), (1, 2)])
def test_a_plan_of_the_host_holds_for_other_numbers_of_threads(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int | str, made_with: int,
        runs_with: int) -> None:
    host, path = find("host"), tmp_path / "small.plan"

    def processors(number: int) -> None:
        monkeypatch.setattr(blas, "threads", lambda: number)
        monkeypatch.setattr(host, "limits", replace(host.limits, compute_units=number))

    processors(made_with)
    gossamer.compile(str(save(small(), tmp_path)), "host", threads=threads).save(path)
    assert Plan.load(path).report().warnings == []
    processors(runs_with)
    loaded, x = Plan.load(path), images(2)
    assert_close(loaded(x), expected(x))
    (warning,) = loaded.report().warnings
    assert warning in loaded.report().notes
    assert re.match(rf".*small.plan: was made with {made_with} processors?, BLAS with {made_with} "
                    rf"threads?, but the device here has {runs_with} processors?, ", warning)
    assert "`gossamer compile MODEL --device host -o " in warning


def test_a_plan_names_the_algorithms_that_it_takes(file: Path) -> None:
    algorithms = json.loads(entries(file)["plan.json"])["made_by"]["algorithms"]
    assert "conv2d host_im2col" in algorithms
    assert set(algorithms) == {f"{step.layer.op} {step.algorithm.name}"
                               for step in Plan.load(file).program(1).steps}


@pytest.mark.parametrize(("there", "here", "message"), [
    ("9.19.0", "9.20.0", "9.19.0, but now it is 9.20.0"),
    ("9.19.0", "", "9.19.0, but now it is none"),
    ("", "9.20.0", "none, but now it is 9.20.0"),
])
def test_a_plan_of_another_library_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch,
                                              there: str, here: str, message: str) -> None:
    monkeypatch.setattr(HostIm2col, "vendor", "Abacus")
    monkeypatch.setattr(HostIm2col, "version", lambda self, device: there)
    plan_file_without_check(file).save(file)
    assert Plan.load(file).planned_batches == [1]
    monkeypatch.setattr(HostIm2col, "version", lambda self, device: here)
    with pytest.raises(InputError, match=f"small.plan: was made with Abacus {message}: its "
                                         "choices are not valid here; compile the network "):
        Plan.load(file)


def test_libraries_that_a_plan_does_not_take_are_not_asked(
        file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cudnn, "version", Mock(side_effect=AssertionError("cuDNN was loaded")))
    Plan.load(file).save(file)
    assert Plan.load(file).planned_batches == [1]


def test_a_plan_for_another_device_is_refused(file: Path, quick_compiled: Device) -> None:
    with pytest.raises(InputError, match=r"was made with device .*\(host, .*\), but now it is "):
        Plan.load(file, quick_compiled)
    rewrite(file, "plan.json", lambda head: {**head, "device": {**head["device"],
                                                                "name": "opencl:77"}})
    with pytest.raises(GossamerError, match=r"small.plan: was made for opencl:77 .*no device"):
        Plan.load(file)
    assert Plan.load(file, "host").device.name == "host"


def test_other_zip_files_and_folders_are_refused(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("word/document.xml", "")
    with pytest.raises(InputError, match="is not a plan saved by gossamer"):
        Plan.load(file)
    with pytest.raises(InputError, match="the plan cannot be read: Is a directory"):
        Plan.load(file.parent)


def test_a_file_cut_anywhere_is_refused_in_one_line(file: Path) -> None:
    data = file.read_bytes()
    for length in random.Random(0).sample(range(len(data)), 60):
        file.write_bytes(data[:length])
        with pytest.raises(GossamerError) as caught:
            Plan.load(file)
        assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_a_changed_byte_is_noticed_or_does_no_harm(file: Path) -> None:
    data, x = file.read_bytes(), images(1)
    y, refused = Plan.load(file)(x), 0
    for seed in range(150):
        rng = random.Random(seed)
        changed = bytearray(data)
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(changed)
        try:
            np.testing.assert_array_equal(Plan.load(file)(x), y)
        except GossamerError as error:
            refused += 1
            assert str(file) in str(error) and "\n" not in str(error)
    assert refused > 100


@pytest.mark.parametrize("entry", ["plan.json", "graph.json", "choices.json"])
def test_damaged_json_with_a_right_checksum_is_refused_in_one_line(file: Path,
                                                                   entry: str) -> None:
    data = file.read_bytes()
    refused = 0
    for seed in range(60):
        file.write_bytes(data)
        rewrite(file, entry, lambda value, seed=seed: _maimed(value, random.Random(seed)))
        try:
            Plan.load(file)
        except GossamerError as error:
            refused += 1
            assert str(file) in str(error) and "\n" not in str(error)
    assert refused > 10


@pytest.mark.parametrize("part", ["network", "tail"])
def test_inputs_of_one_name_are_refused(tmp_path: Path, part: str) -> None:
    last = helper.make_node("NonZero" if part == "tail" else "Relu", ["z"], ["y"])
    proto = model([helper.make_node("Add", ["a", "b"], ["z"]), last],
                  {"a": (None, 3), "b": (None, 3)}, {"y": 2},
                  types={"y": TensorProto.INT64} if part == "tail" else {})
    (tmp_path / "net.onnx").write_bytes(proto.SerializeToString())
    path = tmp_path / "net.plan"
    gossamer.compile(str(tmp_path / "net.onnx"), "host").save(path)

    def renamed(plain: dict[str, Any]) -> dict[str, Any]:
        graph = plain["Graph"]
        holder = graph["tail"]["Tail"] if part == "tail" else graph
        holder["inputs"][1]["ValueInfo"]["name"] = "a"
        return plain

    rewrite(path, "graph.json", renamed)
    with pytest.raises(InputError, match=r"net\.plan: is corrupt .* two inputs have the same name"):
        Plan.load(path)


def test_an_end_that_does_not_take_what_the_network_reads_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["z"]), helper.make_node("NonZero", ["z"], ["y"])]
    (tmp_path / "net.onnx").write_bytes(model(nodes, {"x": (None, 3)}, {"y": 2},
                                               types={"y": TensorProto.INT64}).SerializeToString())
    path = tmp_path / "net.plan"
    gossamer.compile(str(tmp_path / "net.onnx"), "host").save(path)
    y = Plan.load(path)(np.eye(3, dtype=np.float32))
    np.testing.assert_array_equal(y, np.nonzero(np.eye(3)))
    rewrite(path, "graph.json", lambda plain: json.loads(
        json.dumps(plain).replace('"inputs": [{"ValueInfo": {"name": "x"',
                                  '"inputs": [{"ValueInfo": {"name": "other"', 1)))
    with pytest.raises(InputError, match=r"is corrupt or cut short .*are not inputs of the plan"):
        Plan.load(path)


def _maimed(value: Any, rng: random.Random) -> Any:
    """Returns the value with one item in it removed or replaced."""
    if isinstance(value, (dict, list)) and value:
        key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        if rng.random() < 0.3:
            del value[key]
        else:
            value[key] = _maimed(value[key], rng)
        return value
    return rng.choice([None, "other", -1, 1 << 70, [], {}, 0.5, {"tuple": 3}])


def test_the_plan_of_a_strict_compilation_stays_strict(quick_device: Device,
                                                       tmp_path: Path) -> None:
    compiled(small(), quick_device, tmp_path, strict=True).save(tmp_path / "a.plan")
    assert Plan.load(tmp_path / "a.plan", quick_device.name).policy.strict
