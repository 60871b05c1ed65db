"""The HTTP application without a socket: answers, limits, deadlines, and reading again."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import io
import json
import re
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from PIL import Image

import gossamer
from gossamer.errors import DeviceError
from gossamer.io.images import Preprocessing
from tests.model.onnx_models import model, save
from tests.plan.small import assert_close, expected, images, small
from tests.plan.test_batcher import HeldHost
from tests.serve.requests import body_of, output_of

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

from gossamer.serve import checks  # noqa: E402
from gossamer.serve.app import Server, make_app  # noqa: E402
from gossamer.serve.models import BatchOptions, Loaded, Models, ServedModel  # noqa: E402
from gossamer.serve.protocol import InferRequest  # noqa: E402

PREPARE = Preprocessing(size=(6, 5), scale=1 / 255)


@pytest.fixture
def held() -> HeldHost:
    return HeldHost()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return save(small(), tmp_path)


@pytest.fixture
def server(file: Path, held: HeldHost) -> Iterator[Server]:
    served = ServedModel("small", [file], lambda: Loaded(
        gossamer.compile(str(file), held), PREPARE), BatchOptions(most=4, queue=4))
    other = ServedModel("blind", [], lambda: Loaded(
        gossamer.compile(str(file), "host"), None), BatchOptions(most=1))
    server = Server(Models([served, other]), most_bytes=100_000, body_seconds=0.2,
                    most_json=5000, most_pixels=200, hosts=["proxy.example"])
    yield server
    held.may_go.set()
    server.close()


def talk(server: Server, conversation: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    """Returns what a conversation of a client with the application gives."""
    async def talked() -> Any:
        transport = httpx.ASGITransport(make_app(server), raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await conversation(client)

    return asyncio.run(talked())


def post(server: Server, name: str = "small", **options: Any) -> Any:
    return talk(server, lambda client: client.post(f"/v2/models/{name}/infer", **options))


def binary_body(x: np.ndarray) -> tuple[bytes, dict[str, str]]:
    head = json.dumps({"parameters": {"binary_data_output": True}, "inputs": [
        {"name": "x", "shape": list(x.shape), "datatype": "FP32",
         "parameters": {"binary_data_size": x.nbytes}}]}).encode()
    return head + x.tobytes(), {"Inference-Header-Content-Length": str(len(head))}


def test_health_and_descriptions(server: Server) -> None:
    async def look(client: Any) -> list[Any]:
        return [await client.get(path) for path in (
            "/v2/health/live", "/v2/health/ready", "/v2", "/v2/models/small",
            "/v2/models/small/ready", "/v2/models/large", "/nowhere")]

    async def more(client: Any) -> list[Any]:
        for body in (body_of(images(1)), {}):
            await client.post("/v2/models/small/infer", json=body)
        return [await client.post("/v2/repository/index"), *[await client.get(path) for path in (
            "/v2/models/small/config", "/v2/models/small/stats", "/v2/models/stats",
            "/openapi.json")], await client.head("/v2/health/live"), await client.get("/v2/")]

    live, ready, about, described, model_ready, absent, nowhere = talk(server, look)
    assert [r.status_code for r in (live, ready, model_ready)] == [200] * 3
    assert "binary_tensor_data" in about.json()["extensions"]
    assert described.json() == {
        "name": "small", "versions": [], "platform": "gossamer",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3, 6, 5]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, -1]}]}
    assert absent.status_code == 404 and absent.json() == {"error": "there is no model 'large'"}
    assert nowhere.status_code == 404
    index, config, statistics, every, openapi, head, slash = talk(server, more)
    assert index.json()[0] == {"name": "small", "version": "", "state": "READY", "reason": ""}
    assert config.json()["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [3, 6, 5]}]
    assert config.json()["max_batch_size"] == 4
    (own,) = statistics.json()["model_stats"]
    assert (own["inference_count"], own["inference_stats"]["fail"]["count"]) == (1, 1)
    assert own["execution_count"] == sum(each["compute_infer"]["count"]
                                         for each in own["batch_stats"]) == 1
    assert [each["name"] for each in every.json()["model_stats"]] == ["small", "blind"]
    assert "post" in openapi.json()["paths"]["/v2/models/{name}/infer"]
    assert head.status_code == 200 and slash.status_code == 404
    server.is_ending = True
    _, ready, *_ = talk(server, look)
    assert ready.status_code == 503 and ready.json() == {"error": "the server is shutting down"}


@pytest.mark.parametrize("batch", [1, 3])
def test_tensors_in_json_and_in_binary(server: Server, batch: int) -> None:
    x = images(batch)
    assert_close(output_of(post(server, json=body_of(x))), expected(x))
    content, headers = binary_body(x)
    response = post(server, content=content, headers=headers)
    assert response.headers["content-type"] == "application/octet-stream"
    assert_close(output_of(response), expected(x))


def test_types_encodings_and_hosts_that_are_taken(server: Server) -> None:
    for headers in [
            {"Content-Type": "application/json; charset=utf-8", "Origin": "http://a.example"},
            {"Content-Type": "application/x-www-form-urlencoded"}, {"Content-Encoding": "gzip"},
            {"Content-Encoding": "deflate"}, *[{"Host": host} for host in (
                "localhost", "127.0.0.1:80", "[::1]:8000", "192.0.2.1", "box",
                "Proxy.Example.:8000")]]:
        pack = {"gzip": gzip.compress, "deflate": zlib.compress}.get(
            headers.get("Content-Encoding", ""), bytes)
        content = pack(json.dumps(body_of(images(2))).encode())
        assert_close(output_of(post(server, content=content, headers=headers)), expected(images(2)))


def test_types_encodings_hosts_and_sizes_that_are_refused(server: Server) -> None:
    packed = gzip.compress(json.dumps(body_of(images(2))).encode())
    picture = io.BytesIO()
    Image.new("L", (20, 11)).save(picture, "png")
    for status, message, content, headers in [
        (413, "the decompressed body is larger than 97.66 KiB", gzip.compress(bytes(100_001)),
         {"Content-Encoding": "gzip"}),
        (400, "not valid gzip", b"{}", {"Content-Encoding": "gzip"}),
        (400, "it is truncated", packed[:-3], {"Content-Encoding": "gzip"}),
        (400, "more bytes follow its end", packed + b"{}", {"Content-Encoding": "gzip"}),
        (415, "'br': expected gzip, deflate", packed, {"Content-Encoding": "br"}),
        (415, "expected application/json", b"{}", {"Origin": "null"}),
        (415, "expected application/json", b"{}", {
            "Content-Type": "application/x-www-form-urlencoded", "Origin": "http://a.example"}),
        (400, "20 pixels wide and 11 high, too many pixels; scale it down to 200",
         picture.getvalue(), {"Content-Type": "image/png"}),
        *[(403, "is not a name of this server; if a proxy sends this name", b"{}", {"Host": host})
          for host in ("a.example", "127.0.0.1.a.example:80", "a.b:c", "localhost.a.example")],
    ]:
        response = post(server, content=content, headers=headers)
        assert response.status_code == status and message in response.json()["error"]


@pytest.mark.parametrize(("version", "fields", "is_good"), [
    ("1.1", [], False), ("1.1", [(b"host", b"a")] * 2, False), ("1.1", [(b"host", b"a")], True),
    ("1.0", [], True), ("1.0", [(b"transfer-encoding", b"chunked")], False)])
def test_versions_of_http(version: str, fields: list[tuple[bytes, bytes]], is_good: bool) -> None:
    with contextlib.nullcontext() if is_good else pytest.raises(checks.Refusal):
        checks.check_head(version, fields, None)


def test_large_json_and_the_memory_of_all_requests(server: Server) -> None:
    x = images(300)
    content, headers = binary_body(x)
    server._most_bytes = server.memory.most = 10**6
    response = post(server, "blind", json=body_of(x[:60]))
    assert len(response.request.content) > 2**15
    assert_close(output_of(response), expected(x[:60]))
    response = post(server, "blind", json=body_of(x[:80]))
    assert response.status_code == 400
    assert "larger than 4.883 KiB as JSON" in response.json()["error"]
    server.memory.most = len(content)
    assert_close(output_of(post(server, "blind", content=content, headers=headers)), expected(x))
    server.memory.most -= 1
    response = post(server, "blind", content=content, headers=headers)
    assert response.status_code == 429 and response.headers["retry-after"] == "1"
    assert server.memory.held == 0


def test_a_fault_of_the_server(server: Server, caplog: pytest.LogCaptureFixture,
                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_exchange", None)
    response = post(server, json=body_of(images(1)))
    assert response.status_code == 500
    assert response.json() == {"error": "internal server error; the server's log has the details"}
    assert "small: internal server error" in caplog.text and "Traceback" in caplog.text


@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_pictures(server: Server, kind: str) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (12, 10, 3), np.uint8)
    picture = io.BytesIO()
    Image.fromarray(pixels).save(picture, kind)
    headers = {"Content-Type": f"image/{kind}"}
    answers = [post(server, content=picture.getvalue(), headers={**headers, **more})
               for more in ({}, {"Accept": "application/octet-stream"})]
    x = PREPARE(np.asarray(Image.open(picture)))[None]
    for response in answers:
        assert_close(output_of(response), expected(x))
    response = post(server, content=picture.getvalue()[:60], headers=headers)
    assert response.status_code == 400 and "the picture: " in response.json()["error"]
    length = {"Inference-Header-Content-Length": "soon"}
    response = post(server, content=picture.getvalue(), headers={**headers, **length})
    assert response.status_code == 400 and "expected a number of bytes" in response.json()["error"]
    response = post(server, "blind", content=picture.getvalue(), headers=headers)
    assert response.status_code == 400
    assert "the preprocessing of images is unknown" in response.json()["error"]


@pytest.mark.parametrize(("options", "status", "message"), [
    ({"content": b"{"}, 400, "the request is not valid JSON"),
    ({"json": body_of(images(1)[:, :2])}, 400, "input 'x' has shape 1x2x6x5, expected Nx3x6x5"),
    ({"json": {"inputs": []}}, 400, "model 'small' needs the inputs 'x', but the request has none"),
    ({"json": json.loads(json.dumps(body_of(images(1))).replace("FP32", "FP64"))}, 400,
     "input 'x' has datatype FP64, expected FP32, or one that converts to it without loss$"),
    ({"content": binary_body(images(1))[0]}, 400,
     "not valid JSON: other bytes follow it; if they are binary tensors, Inference-Header-"),
    ({"json": {**body_of(images(1)), "outputs": [{"name": "w"}]}}, 400, "there is no output 'w'"),
    ({"content": b"{}", "headers": {"Inference-Header-Content-Length": "3"}}, 400,
     "but the body has 2 bytes"),
    ({"json": body_of(images(1)), "headers": {"Deadline-Ms": "soon"}}, 400,
     "Deadline-Ms is 'soon', expected a positive number of"),
    ({"content": b"x" * 100_001}, 413, "the body is larger than 97.66 KiB"),
])
def test_what_is_refused(server: Server, options: dict[str, Any], status: int,
                         message: str) -> None:
    response = post(server, **options)
    assert response.status_code == status, response.text
    assert re.search(message, response.json()["error"])


@pytest.mark.parametrize(("sizes", "pause", "status"), [([1000] * 200, 0, 413), ([1, 1], 5, 408)],
                         ids=["too much", "too slow"])
def test_bodies_without_a_length(server: Server, sizes: list[int], pause: float,
                                 status: int) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for size in sizes:
            yield b"{" * size
            await asyncio.sleep(pause)

    response = post(server, content=pieces())
    assert response.status_code == status
    assert status == 413 or response.headers["connection"] == "close"


def test_a_full_queue_and_deadlines(server: Server, held: HeldHost) -> None:
    async def many(client: Any) -> list[Any]:
        held.may_go.clear()
        ask = partial(client.post, "/v2/models/small/infer", json=body_of(images(1)))
        first = asyncio.create_task(ask())
        while not server.models.by_name["small"].batcher.batches:
            await asyncio.sleep(0.01)
        late = await ask(headers={"Deadline-Ms": "20"})
        timed = await client.post("/v2/models/small/infer", json={
            **body_of(images(1)), "parameters": {"timeout": 20_000}})
        waiting = [asyncio.create_task(ask()) for _ in range(4)]
        while server.models.by_name["small"].batcher.waiting < 4:
            await asyncio.sleep(0.01)
        refused = await ask()
        held.may_go.set()
        return [late, timed, refused, await first, *[await task for task in waiting]]

    late, timed, refused, *others = talk(server, many)
    for response in (late, timed):
        assert response.status_code == 504 and "the deadline passed" in response.json()["error"]
    assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
    for response in others:
        assert_close(output_of(response), expected(images(1)))


def test_a_device_that_fails(server: Server, held: HeldHost) -> None:
    held.error = DeviceError("the bus has come off")
    response = post(server, json=body_of(images(1)))
    assert response.status_code == 503 and response.json() == {"error": "the bus has come off"}
    held.error = None
    assert_close(output_of(post(server, json=body_of(images(1)))), expected(images(1)))


@pytest.mark.parametrize("error", ["deadline", "device", "shape"])
def test_the_body_of_a_request_that_failed_is_freed(server: Server, held: HeldHost,
                                                    error: str) -> None:
    x = images(1)[:, :1] if error == "shape" else images(1)
    held.error = DeviceError("the bus has come off") if error == "device" else None

    async def ask(client: Any) -> int:
        if error == "deadline":
            held.may_go.clear()
        response = await client.post("/v2/models/small/infer", json=body_of(x), headers={
            "Deadline-Ms": "30" if error == "deadline" else "20000"})
        held.may_go.set()
        return int(response.status_code)

    gc.collect()
    gc.disable()
    try:
        assert talk(server, ask) == {"deadline": 504, "device": 503, "shape": 400}[error]
        server.models.close()
        assert not [each for each in gc.get_objects() if isinstance(each, InferRequest)]
    finally:
        gc.enable()


def test_what_is_counted(server: Server) -> None:
    post(server, json=body_of(images(1)))
    post(server, json={})
    post(server, "nobody", json={})
    text = talk(server, lambda client: client.get("/metrics")).text
    for line in ('gossamer_requests_total{model="small",status="200"} 1.0',
                 'gossamer_requests_total{model="small",status="400"} 1.0',
                 'gossamer_requests_total{model="",status="404"} 1.0',
                 'gossamer_waiting_images{model="small"} 0.0'):
        assert line in text
    # a larger batch is taken where it was measured to be faster
    assert re.findall(r'gossamer_batches_total\{model="small",size="[124]"\} (.*)', text) == ["1.0"]
    assert "nobody" not in text


def test_changed_files_are_read_again(server: Server, file: Path, tmp_path: Path) -> None:
    async def change(client: Any) -> list[Any]:
        ask = partial(client.post, "/v2/models/small/infer", json=body_of(images(1)))
        answers = [await ask()]
        before = server.models.by_name["small"]
        await server.renew()
        assert server.models.by_name["small"] is before
        file.write_bytes(b"no network")
        await server.renew()
        answers.append(await ask())
        proto = model([helper.make_node("Neg", ["x"], ["y"], "negated")],
                      {"x": ["N", 3, 6, 5]}, {"y": 4})
        save(proto, tmp_path / "other").replace(file)
        asked = [asyncio.create_task(ask()) for _ in range(4)]
        await server.renew()
        answers += [await task for task in asked]
        answers += [await client.post("/v2/models/small/infer", json=body_of(images(2)))]
        own = (await client.get("/v2/models/small/stats")).json()["model_stats"][0]
        assert own["inference_count"] == 8 and own["execution_count"] >= 4
        assert (await client.get("/v2/models/smal")).json()["error"].endswith("mean 'small'?")
        return [*answers, await ask()]

    (tmp_path / "other").mkdir()
    old, kept, *between, new = talk(server, change)
    for response in (old, kept):
        assert_close(output_of(response), expected(images(1)))
    assert all(response.status_code == 200 for response in between)
    np.testing.assert_array_equal(output_of(new), -images(1))

