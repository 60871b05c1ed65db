"""The process of `gossamer serve`: its signals, its end, and connections that say nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from gossamer.device.registry import find
from tests.model.onnx_models import save
from tests.plan.small import assert_close, compiled, expected, images, small
from tests.processes import runs, until
from tests.serve.requests import body_of, output_of

httpx = pytest.importorskip("httpx")
for needed in ("fastapi", "httptools", "prometheus_client", "uvicorn"):
    pytest.importorskip(needed)
pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as on POSIX")


@contextmanager
def served(*arguments: Any, device: str = "host",
           **settings: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Gives the body a process that serves, and its address."""
    command = [sys.executable, "-m", "gossamer", "serve", *map(str, arguments), "--device", device,
               "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, **settings})
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        # the first line of the log comes before a network is read: a signal then does no harm.
        # Without a buffer, in which lines would be lost for `communicate`
        line = FileIO(process.stderr.fileno(), closefd=False).readline().decode()
        process.send_signal(signal.SIGHUP)
        while process.poll() is None and not line.startswith("listening at "):
            line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield process, line.removeprefix("listening at ").strip()
    finally:
        process.kill()
        process.communicate()


def ask(client: Any, x: np.ndarray) -> np.ndarray:
    return answer_to(client, x, "small")[0]


def answer_to(client: Any, x: np.ndarray, model: str) -> tuple[np.ndarray, bool]:
    """Returns the outputs, and whether the server keeps the connection."""
    response = client.post(f"/v2/models/{model}/infer", json=body_of(x))
    return output_of(response), response.headers.get("connection") != "close"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return save(small(), tmp_path).rename(tmp_path / "small.onnx")


WITH_PROCESSES = """
from gossamer.plan import group_processes

group_processes.have_processes = lambda devices: len(devices) > 1
"""


def workers_of(pid: int) -> list[int]:
    """Returns the processes of devices that a process has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (b"group_worker" in (folder / "cmdline").read_bytes()
                    and f"PPid:\t{pid}\n" in (folder / "status").read_text()):
                found.append(int(folder.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
@pytest.mark.parametrize("names", ["host", "host,host"])
def test_sigterm_under_load_loses_no_request(names: str, file: Path, tmp_path: Path) -> None:
    # Python imports this module at its start
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "sitecustomize.py").write_text(WITH_PROCESSES)
    folders = os.pathsep.join([str(tmp_path / "start"), *filter(None, sys.path)])
    plan = tmp_path / "saved.plan"
    compiled(small(), find("host"), tmp_path).save(plan)
    problems: list[str] = []
    answered = [0] * 4
    ended: list[int] = []

    def send(address: str, caller: int) -> None:
        with httpx.Client(base_url=address, timeout=20) as client:
            while True:
                x = images(1 + caller, answered[caller])
                try:
                    y, goes_on = answer_to(client, x, "saved" if caller % 2 else "small")
                    assert_close(y, expected(x))
                except Exception as error:
                    problems.append(f"{type(error).__name__}: {error}")
                    return
                answered[caller] += 1
                if not goes_on:
                    ended.append(caller)
                    return

    with served(file, plan, "--grace", "0.3", device=names,
                PYTHONPATH=folders) as (process, address):
        callers = [threading.Thread(target=send, args=(address, caller)) for caller in range(4)]
        for caller in callers:
            caller.start()
        until(lambda: min(answered) >= 5 or problems)
        workers = workers_of(process.pid)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
        for caller in callers:
            caller.join(20)
    assert len(workers) == (4 if names == "host,host" else 0) and not any(map(runs, workers))
    # all were told that the server ends, and none of their requests was lost
    assert min(answered) >= 5 and not problems and sorted(ended) == [0, 1, 2, 3]
    assert (process.returncode, out) == (0, "ended\n")
    assert "INFO gossamer.serve: shutting down\n" in err
    assert "Traceback" not in err and "ERROR" not in err


def test_sighup_under_load_loses_no_request(file: Path, tmp_path: Path) -> None:
    answers: list[np.ndarray] = []
    with served(file) as (process, address), httpx.Client(base_url=address, timeout=20) as client:
        assert_close(ask(client, images(2)), expected(images(2)))
        ending = threading.Event()

        def send() -> None:
            with httpx.Client(base_url=address, timeout=20) as other:
                while not ending.is_set():
                    answers.append(ask(other, images(2)))

        caller = threading.Thread(target=send)
        caller.start()
        changed = onnx.ModelProto()
        changed.CopyFrom(small())
        bias = changed.graph.initializer[-1]
        bias.raw_data = np.full(4, 1e6, np.float32).tobytes()
        (tmp_path / "new").mkdir()
        save(changed, tmp_path / "new").replace(file)
        process.send_signal(signal.SIGHUP)
        until(lambda: ask(client, images(2)).min() >= 5e5)
        count = len(answers)
        until(lambda: len(answers) >= count + 3)
        ending.set()
        caller.join(20)
        kinds = [y.min() > 5e5 for y in answers]
        # every request was answered: first by the old network, then by the new
        assert kinds == sorted(kinds) and kinds[-1]
        file.write_bytes(b"no network")
        process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert ask(client, images(2)).min() > 5e5


@pytest.mark.parametrize(("arguments", "message"), [
    (["small.onnx", "other/small.onnx"], "the name 'small' is used twice; use NAME=MODEL"),
    (["../x=small.onnx"], "the name '../x' is not valid in a URL"),
    (["small.onnx", "--host", "no.such.host.invalid"], "--host no.such.host.invalid"),
    (["absent.onnx"], "absent.onnx"),
])
def test_what_is_not_served(arguments: list[str], message: str, file: Path, tmp_path: Path) -> None:
    words = [str(tmp_path / word) if word == "small.onnx" else
             word.replace("=small.onnx", f"={file}") for word in arguments]
    done = subprocess.run([sys.executable, "-m", "gossamer", "serve", *words, "--port", "0"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_client_of_the_protocol(file: Path) -> None:
    client_library = pytest.importorskip("tritonclient.http")
    with served(file, "--latency", "500ms") as (_, address):
        client = client_library.InferenceServerClient(address.removeprefix("http://"))
        assert client.is_server_live() and client.is_server_ready()
        assert client.is_model_ready("small")
        assert client.get_model_metadata("small")["inputs"][0]["datatype"] == "FP32"
        assert client.get_model_config("small")["output"][0]["data_type"] == "TYPE_FP32"
        assert client.get_model_repository_index()[0]["name"] == "small"
        for binary, packed in ((True, "gzip"), (False, "deflate"), (True, None), (False, None)):
            x = images(3)
            given = client_library.InferInput("x", list(x.shape), "FP32")
            given.set_data_from_numpy(x, binary_data=binary)
            wanted = client_library.InferRequestedOutput("y", binary_data=binary)
            for outputs in ([wanted], None):
                result = client.infer("small", [given], outputs=outputs, request_id="a",
                                      timeout=10_000_000, request_compression_algorithm=packed)
                assert_close(result.as_numpy("y"), expected(x))
        for name in ("small", ""):
            (own,) = client.get_inference_statistics(name)["model_stats"]
            assert own["inference_count"] == 8 * len(x)
        client.close()


_JAVA = """
import java.net.URI; import java.net.http.*;
public class Post { public static void main(String[] words) throws Exception {
  var request = HttpRequest.newBuilder(URI.create(words[0]))
      .POST(HttpRequest.BodyPublishers.ofString(words[1])).build();
  var body = HttpResponse.BodyHandlers.ofString();
  System.out.println(HttpClient.newHttpClient().send(request, body).body()); } }
"""


@pytest.mark.parametrize("program", ["java", "curl"])
def test_clients_that_offer_another_version_of_http(program: str, file: Path,
                                                    tmp_path: Path) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program}")
    (tmp_path / "Post.java").write_text(_JAVA)
    x = images(2)
    body = json.dumps(body_of(x))
    with served(file) as (_, address):
        url = f"{address}/v2/models/small/infer"
        command = {"java": ["java", str(tmp_path / "Post.java"), url, body],
                   "curl": ["curl", "--silent", "--http2", "--data", body, url]}[program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    (output,) = json.loads(done.stdout)["outputs"]
    assert_close(np.float32(output["data"]).reshape(output["shape"]), expected(x))


def test_the_log(file: Path) -> None:
    options = ["--access-log", "--log-format", "json", "--host", "0.0.0.0"]
    with served(file, *options) as (process, address):
        httpx.get(f"{address}/v2/health/live")
        file.write_bytes(b"no network")
        process.send_signal(signal.SIGHUP)
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        lines = [json.loads(line) for line in process.communicate(timeout=30)[1].splitlines()]
    messages = [line["message"] for line in lines]
    assert messages[0] == f"small: loading {file}" and messages[-1] == "shutting down"
    assert any("a batch of 1 takes" in text for text in messages)
    assert any(text.endswith('"GET /v2/health/live HTTP/1.1" 200') for text in messages)
    assert any(text.startswith("small cannot be reloaded; its ") for text in messages)
    assert any((line.get("method"), line.get("path"), line.get("status")) ==
               ("GET", "/v2/health/live", 200) for line in lines)
    assert {line["level"] for line in lines} == {"info", "warning", "error"}
    assert any("no authentication: " in text for text in messages)


def test_a_server_that_is_killed_leaves_nothing(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with served(file, GOSSAMER_CACHE=str(folder), TMPDIR=str(temporary)) as (process, address):
        with httpx.Client(base_url=address) as client:
            ask(client, images(1))
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        before = children.read_text().split() if children.exists() else []
        process.kill()
        process.wait(20)
        until(lambda: not any(Path(f"/proc/{child}").exists() for child in before))
    # ONNX Runtime keeps a file of that name there
    assert [path.name for path in temporary.iterdir() if path.name != ".ses"] == []
    assert json.dumps([str(path) for path in folder.rglob("*.tmp*")]) == "[]"


def test_a_body_that_comes_in_many_parts(file: Path) -> None:
    x = images(3)
    body = json.dumps(body_of(x)).encode()
    parts = [body[start:start + 7] for start in range(0, len(body), 7)]
    with served(file, "--latency", "500ms") as (_, address):
        for _ in range(2):
            response = httpx.post(f"{address}/v2/models/small/infer", content=iter(parts),
                                  timeout=20)
            assert_close(output_of(response), expected(x))
