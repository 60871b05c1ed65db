"""Servers under load: the client that measures them, the options, and the chart."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec

import pytest

from gossamer_bench import serving
from gossamer_bench.load_client import Outcome, Request, run
from gossamer_bench.report.charts import serving_png
from gossamer_bench.serving import ServingRow
from tests.cli.command_line import fails, save_network


class _Echo(BaseHTTPRequestHandler):
    """Answers with what it gets; b"full" is refused, b"end" closes the connection, and b"silent"
    closes it without saying so."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(429 if body == b"full" else 200)
        self.send_header("X-Content-Length", "7")
        self.send_header("Content-Length", str(len(body)))
        if body == b"end":
            self.send_header("Connection", "close")
        self.close_connection |= body == b"silent"
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.parametrize("rate", [None, 60.0])
def test_a_client_gets_its_answers(rate: float | None, port: int) -> None:
    bodies = [b"one", b"end", b"full", b"silent"]
    outcome = run(Request("127.0.0.1", port, "/", {"A": "b"}, bodies, rate, 0.5, 4, check=True))
    assert set(outcome.statuses) - {"failed"} == {"200", "429"}
    assert not outcome.statuses.get("failed")
    assert len(outcome.latencies_s) == outcome.statuses["200"] > 3
    assert {name: [base64.b64decode(answer) for answer in answers]
            for name, answers in outcome.answers.items()} == {"0": [b"one"], "1": [b"end"],
                                                              "3": [b"silent"]}
    assert 0 < outcome.percentile_s(50) <= outcome.percentile_s(99) < outcome.seconds


def test_a_server_that_is_not_there(port: int) -> None:
    outcome = run(Request("127.0.0.1", 1, "/", {}, [b"x"], 20.0, 0.3, 2))
    assert outcome.rate == 0 and outcome.statuses["failed"] > 0
    assert outcome.percentile_s(50) == float("inf")


def test_percentiles() -> None:
    outcome = Outcome([float(value) for value in range(1, 101)], {}, 10.0)
    assert outcome.rate == 10
    assert [outcome.percentile_s(percent) for percent in (0, 50, 99, 99.9)] == [1, 51, 100, 100]


@pytest.mark.parametrize(("words", "message"), [
    ([], "bench serve: give one network"),
    (["mobilenet_v2", "--rates", "1,fast"], "--rates 1,fast: expected requests a second"),
    (["mobilenet_v2", "--against", "nginx"], "no server 'nginx'; expected some of litserve"),
])
def test_wrong_options(words: list[str], message: str) -> None:
    assert message in fails(2, "bench", "serve", *words)


def test_a_network_without_photos(tmp_path) -> None:
    network = save_network(tmp_path / "n.onnx")
    assert "takes no photos of one size" in fails(2, "bench", "serve", network, "--against", "none",
                                                  "--device", "host")


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_the_chart() -> None:
    rows = [ServingRow("gossamer", 1, rate, 1, 2, 3, 4, 0) for rate in (None, 10.0, 20.0)]
    assert serving_png(rows).startswith(b"\x89PNG")


def test_a_row_has_what_was_answered_and_the_shares_of_batches(
        monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float | None] = []
    computed = iter([{1: 5, 8: 2}, {1: 5, 8: 5, 4: 1}] * 9)

    def answered(request: Request) -> Outcome:
        asked.append(request.rate)
        return Outcome([0.002] * 98 + [0.5, 1.0], {"200": 100, "429": 3, "failed": 4}, 2.0)

    for name, stand_in in {"run": answered, "_started": lambda *_: nullcontext(80),
                           "_batches": lambda *_: next(computed),
                           "_network_input": lambda setting: ("x", (1, 2, 2, 3))}.items():
        monkeypatch.setattr(serving, name, stand_in)
    most, *rows = serving.measure(serving.Setting("net", "host", 1.0, "5ms"), ["gossamer"], [])
    assert asked == [None, *(row.rate for row in rows)] and not most.batches
    # without --rates, requests come at shares of what is answered at most
    assert all(0 < row.rate <= 50 for row in rows)
    for row in (most, *rows):
        assert (row.answered, row.failed, row.p50_ms, row.p99_ms, row.p999_ms) == (
            50, 7, 2.0, 1000.0, 1000.0)
    assert all(row.batches == {4: 0.25, 8: 0.75} for row in rows)
