"""gossamer detect and convert on the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

import gossamer
from tests.cli.command_line import fails, gossamer_cli, succeeds
from tests.detect.networks import save_detector
from tests.model.readers.darknet.networks import NETWORKS
from tests.model.readers.darknet.test_reader import images_for, load_text
from tests.plan.small import assert_as_runtime


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a small network and two photos in a folder of their own."""
    load_text(tmp_path, NETWORKS["yolov3_tiny"])
    (tmp_path / "photos").mkdir()
    random = np.random.default_rng(0)
    for name, shape in (("a.png", (30, 20, 3)), ("b.jpg", (1, 1, 3))):
        Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8)).save(
            tmp_path / "photos" / name)
    return tmp_path


def detect(folder: Path, *words: object, model: str = "net.cfg") -> tuple[object, ...]:
    return ("detect", folder / model, *words, "--device", "host")


def test_a_folder_of_photos(folder: Path) -> None:
    (folder / "photos" / "notes.txt").write_text("no photo")
    out = folder / "out"
    words = detect(folder, folder / "photos", "--threshold", "0.1", "-o", out, "--batch", "2")
    lines = succeeds(*words).stdout.splitlines()
    assert lines[0].startswith(f"{folder / 'photos' / 'a.png'} (20x30): ")
    assert lines[0].endswith(" objects") and "%  class " in lines[1]
    assert "objects on 2 photos; on host" in lines[-2] and "photos/s" in lines[-2]
    assert lines[-1] == f"written: {out}"
    assert sorted(path.name for path in out.iterdir()) == ["a.png", "b.jpg", "detections.json"]
    results = json.loads((out / "detections.json").read_text())
    assert results == {**json.loads(succeeds(*words, "--json").stdout),
                       "photos_per_second": results["photos_per_second"]}
    assert (results["threshold"], results["nms"], results["resize"]) == (
        0.1, 0.45, "letterbox")
    first, second = results["results"]
    assert (first["width"], first["height"], second["width"]) == (20, 30, 1)
    detector = gossamer.Detector(folder / "net.cfg", "host", threshold=0.1)
    boxes = detector(folder / "photos" / "a.png")
    assert [entry["class"] for entry in first["objects"]] == [box.class_index for box in boxes]
    drawn = np.asarray(Image.open(out / "a.png"))
    assert drawn.shape == (30, 20, 3)
    assert (drawn != np.asarray(Image.open(folder / "photos" / "a.png"))).any()


def test_one_photo_and_names(folder: Path) -> None:
    photo = folder / "photos" / "a.png"
    (folder / "animals").write_text("cat\ndog\n")
    words = detect(folder, photo, "--names", folder / "animals", "--threshold", "0.1", "--nms",
                   "0.9", "--resize", "stretch")
    for name in ("out.png", "out.JPG"):
        text = succeeds(*words, "-o", folder / name).stdout
        assert "%  cat, " in text or "%  dog, " in text
        assert Image.open(folder / name).size == (20, 30)
    succeeds(*words, "-o", folder / "out.json")
    found = json.loads((folder / "out.json").read_text())
    assert (found["nms"], found["resize"]) == (0.9, "stretch")
    assert {entry["name"] for entry in found["results"][0]["objects"]} <= {"cat", "dog"}


def test_no_objects(folder: Path) -> None:
    lines = succeeds(*detect(folder, folder / "photos", "--threshold", "1")).stdout.splitlines()
    assert lines[0].endswith("a.png (20x30): no objects with a score above 1")
    assert lines[-1].startswith("no objects on 2 photos; on host")


def test_an_unreadable_photo_among_several(folder: Path) -> None:
    (folder / "photos" / "aa.png").write_bytes(b"no photo")
    out = folder / "out"
    result = gossamer_cli(*detect(folder, folder / "photos", "-o", out))
    assert result.exit_code == 2
    (error,) = [line for line in result.stderr.splitlines() if line.startswith("error")]
    assert "aa.png: not a readable image" in error
    assert "on 2 photos, 1 could not be read; on host" in result.stdout
    results = json.loads((out / "detections.json").read_text())["results"]
    assert [("error" in entry) for entry in results] == [False, True, False]
    assert "absent.png: no such file or folder" in fails(2, *detect(folder, folder / "absent.png"))
    assert sorted(path.name for path in out.iterdir()) == ["a.png", "b.jpg", "detections.json"]


def test_what_else_lies_in_a_folder(folder: Path) -> None:
    photos = folder / "photos"
    for name in (".hidden.png", "._a.png", "notes.txt", "film.mpg"):
        (photos / name).write_bytes(b"no photo")
    (photos / "more").mkdir()
    shutil.copy(photos / "a.png", photos / "more")
    result = gossamer_cli(*detect(folder, photos, "--threshold", "1"))
    assert result.exit_code == 0
    assert "no objects on 3 photos" in result.stdout
    assert "notice: 2 files skipped: not image files by their suffix" in result.stderr


def test_a_new_folder_is_made_when_something_is_written(folder: Path) -> None:
    photo = folder / "photos" / "a.png"
    fails(2, *detect(folder, photo, "-o", folder / "new", "--threshold", "2"))
    fails(2, *detect(folder, photo, "-o", folder / "new", model="absent.onnx"))
    assert not (folder / "new").exists()
    succeeds(*detect(folder, photo, "-o", f"{folder / 'results.2'}/"))
    assert {path.name for path in (folder / "results.2").iterdir()} == {"a.png", "detections.json"}


@pytest.mark.parametrize("text", ["cat\r\ndog\r\n", "\ufeffcat\n\n dog \n\n"])
def test_names_as_people_write_them(text: str, folder: Path) -> None:
    (folder / "animals").write_bytes(text.encode())
    words = detect(folder, folder / "photos" / "a.png", "--threshold", "0", "--nms", "1", "--json",
                   "--names", folder / "animals")
    (result,) = json.loads(succeeds(*words).stdout)["results"]
    assert {entry["name"] for entry in result["objects"]} == {"cat", "dog"}


def test_nothing_is_said_to_be_written_where_nothing_is(folder: Path) -> None:
    (folder / "text.png").write_text("no photo")
    result = gossamer_cli(*detect(folder, folder / "text.png", "-o", folder / "out.png"))
    assert result.exit_code == 2
    assert "no objects on 0 photos, 1 could not be read" in result.stdout
    assert "written" not in result.stdout
    assert not (folder / "out.png").exists()


def test_photos_of_any_sides(folder: Path) -> None:
    for number, size in enumerate([(1, 1), (20_000, 1), (1, 20_000), (9_000, 9_000)]):
        Image.new("1", size).save(folder / f"side-{number}.png")
    photos = [folder / f"side-{number}.png" for number in range(4)]
    result = gossamer_cli(*detect(folder, *photos, "--threshold", "1"))
    assert result.exit_code == 2
    assert "side-1.png (20000x1): no objects" in result.stdout
    (error,) = [line for line in result.stderr.splitlines() if line.startswith("error")]
    assert error.endswith("side-3.png: is 9000 pixels wide and 9000 high, too many pixels; scale "
                          "it down to 67108864 or fewer first")


def test_photos_of_one_name(folder: Path) -> None:
    (folder / "more").mkdir()
    shutil.copy(folder / "photos" / "a.png", folder / "more" / "a.png")
    Image.open(folder / "photos" / "a.png").save(folder / "more" / "c.bmp")
    succeeds(*detect(folder, folder / "photos", folder / "more", "-o", folder / "out"))
    assert sorted(path.name for path in (folder / "out").iterdir()) == [
        "a-2.png", "a.png", "b.jpg", "c.png", "detections.json"]


def test_a_plan_an_onnx_file_and_other_weights(folder: Path) -> None:
    photo = folder / "photos" / "a.png"

    def found(*words: object, model: str = "net.cfg") -> list[float]:
        text = succeeds(*detect(folder, photo, "--threshold", "0.1", "--json", *words,
                                model=model)).stdout
        return [entry["score"] for entry in json.loads(text)["results"][0]["objects"]]

    expected = found()
    assert expected
    gossamer.compile(str(folder / "net.cfg"), "host").save(folder / "net.plan")
    succeeds("convert", folder / "net.cfg", "-o", folder / "net.onnx")
    for model in ("net.plan", "net.onnx"):
        assert found(model=model) == pytest.approx(expected, abs=1e-5)
    (folder / "net.weights").rename(folder / "trained")
    assert found("--weights", folder / "trained") == pytest.approx(expected, abs=1e-5)
    save_detector(folder / "yolov8.onnx", "yolov8", names={0: "cat", 1: "dog"})
    assert len(found(model="yolov8.onnx")) == 4


def test_wrong_options(folder: Path) -> None:
    photo = folder / "photos" / "a.png"
    assert "cannot read" in fails(2, *detect(folder, photo, "--weights", folder / "absent"))
    load_text(folder, NETWORKS["darknet19"])
    assert "are not boxes" in fails(2, *detect(folder, photo))


def test_convert(tmp_path: Path) -> None:
    images = images_for(NETWORKS["yolov4"])
    graph = load_text(tmp_path, NETWORKS["yolov4"])
    target = tmp_path / "out.onnx"
    line = succeeds("convert", tmp_path / "net.cfg", "-o", target).stdout
    assert line.startswith(f"written: {target}, an ONNX file of ")
    assert_as_runtime(gossamer.compile(graph, "host"), onnx.load(target), images)
    texts = {entry.key: entry.value for entry in onnx.load(target).metadata_props}
    assert json.loads(texts["anchors"])[0] == [10, 14]
    assert json.loads(texts["detector"])["heads"][0]["mask"] == [3, 4, 5]
    # an ONNX file is written as it is
    succeeds("convert", target, "-o", tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == target.read_bytes()
    (tmp_path / "net.weights").rename(tmp_path / "trained")
    succeeds("convert", tmp_path / "net.cfg", "--weights", tmp_path / "trained", "-o", target)


def test_other_verbs_take_a_cfg(tmp_path: Path) -> None:
    load_text(tmp_path, NETWORKS["yolov3_tiny"])
    cfg, weights = tmp_path / "net.cfg", tmp_path / "trained"
    (tmp_path / "net.weights").rename(weights)
    assert "convolutional_0" in succeeds("inspect", cfg, "--weights", weights).stdout
    np.save(tmp_path / "x.npy", images_for(NETWORKS["yolov3_tiny"]))
    succeeds("run", cfg, "--weights", weights, "--input", tmp_path / "x.npy", "--output",
             tmp_path / "y.npz", "--device", "host")
    assert len(np.load(tmp_path / "y.npz").files) == 2
    succeeds("prune", cfg, "--weights", weights, "--sparsity", "0.5", "-o", tmp_path / "thin.onnx")
    thin = gossamer.load(tmp_path / "thin.onnx")
    assert thin.metadata == gossamer.load(cfg, weights).metadata
    assert "its weights file is missing" in fails(2, "inspect", cfg)
    assert "--weights: the name is empty" in fails(2, "inspect", cfg, "--weights", "")
    with open(cfg, "a") as file:
        file.write("fantasy=1\n")
    notice = gossamer_cli("inspect", cfg, "--weights", weights).stderr
    assert "unknown keys are ignored: 'fantasy' of [yolo]" in notice
