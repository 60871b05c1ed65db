"""The HTTP application: routes, limits, and the answer to each error."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from gossamer.device.host import processors
from gossamer.errors import DeadlineError, GossamerError, InputError, QueueFullError, quoted
from gossamer.io.text import bytes_text
from gossamer.serve import protocol
from gossamer.serve.exchange import Exchange
from gossamer.serve.metrics import Metrics
from gossamer.serve.models import Models
from gossamer.version import PACKAGE_VERSION

logger = logging.getLogger("gossamer.serve")

DEADLINE = "Deadline-Ms"
"""The header with the milliseconds after which an answer is of no use."""
PICTURES = ("image/jpeg", "image/png", "image/webp", "image/bmp", "image/gif")
_INFERENCE = re.compile("/v2/models/([^/]+)/infer")
_BINARY = "application/octet-stream"
_SMALL_BYTES = 2**15
"""The most bytes of JSON that the event loop itself parses. Longer JSON would keep the loop busy;
a thread parses it."""
_FEW_NUMBERS = 2**12
"""The most numbers that the event loop itself writes as JSON; a thread writes larger outputs."""
_BODIES_AT_ONCE = 16
"""The most memory that all bodies together may take, as a multiple of the largest size of a
body."""


class _Refusal(Exception):
    """An answer other than success: its HTTP status, and the message for the client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Server:
    """The state of an application.

    most_bytes: bytes of the largest body.
    body_seconds: seconds that a client may take to send a body.
    is_ending: whether the server is about to end, so that connections are not kept.
    """

    def __init__(self, models: Models, *, most_bytes: int = 2**26,
                 body_seconds: float = 30.0) -> None:
        self.models = models
        self.metrics = Metrics(models)
        self.is_ending = False
        self._most_bytes = most_bytes
        self._body_seconds = body_seconds
        self._bytes_now = 0
        self._exchange = Exchange()
        self._threads = ThreadPoolExecutor(processors(), "gossamer-serve")

    async def renew(self) -> None:
        """Reads again the networks whose files have changed. The old plan of such a network
        computes the requests that wait, and the new plan computes later requests."""
        loop = asyncio.get_running_loop()
        for name, model in (await loop.run_in_executor(None, self.models.renewals)).items():
            old = self.models.by_name[name]
            self.models.by_name[name] = model
            self._exchange.hand_over()
            await loop.run_in_executor(None, old.close)
            logger.warning("%s was read again", name)

    async def _infer(self, name: str, headers: Mapping[str, str], receive: Receive) -> Response:
        """Returns the answer to a request for inference. Raises errors, which answer() catches."""
        if name not in self.models.by_name:
            raise _Refusal(404, f"there is no model {quoted(name)}")
        deadline = self._deadline(headers)
        size = 0
        chunks: list[bytes] = []
        try:
            self._check_size(int(headers.get("content-length", 0)))
            try:
                async with asyncio.timeout(self._body_seconds):
                    is_whole = False
                    while not is_whole:
                        message = await receive()
                        if message["type"] == "http.disconnect":
                            raise ClientDisconnect
                        chunk = message.get("body", b"")
                        size += len(chunk)
                        self._bytes_now += len(chunk)
                        self._check_size(size)
                        chunks.append(chunk)
                        is_whole = not message.get("more_body", False)
            except TimeoutError:
                raise _Refusal(408, f"the body did not come in {self._body_seconds:g} s") from None
            return await self._computed(name, headers, b"".join(chunks), deadline)
        finally:
            self._bytes_now -= size

    def _check_size(self, size: int) -> None:
        """Refuses a body that is too large, alone or together with the bodies that are in
        memory."""
        if size > self._most_bytes:
            raise _Refusal(413, f"the body is larger than {bytes_text(self._most_bytes)}; send "
                                "fewer images at once")
        if self._bytes_now > _BODIES_AT_ONCE * self._most_bytes:
            raise _Refusal(429, "too many large requests at once; try again later")

    @staticmethod
    def _deadline(headers: Mapping[str, str]) -> float | None:
        """Returns the time of the monotonic clock after which the answer is of no use; None where
        the request states no deadline."""
        text = headers.get(DEADLINE.lower())
        if text is None:
            return None
        try:
            milliseconds = float(text)
        except ValueError:
            milliseconds = -1.0
        if not 0 < milliseconds < 1e9:
            raise _Refusal(400, f"{DEADLINE} is {quoted(text)}, expected milliseconds above 0")
        return time.monotonic() + milliseconds / 1e3

    async def _computed(self, name: str, headers: Mapping[str, str], body: bytes,
                        deadline: float | None) -> Response:
        model = self.models.by_name[name]
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in PICTURES:
            arrays = await self._in_thread(model.picture, body)
            wanted = protocol.InferRequest(
                arrays, binary=_BINARY in headers.get("accept", ""))
        else:
            length = headers.get(protocol.HEADER_LENGTH.lower())
            text, binary = protocol.split(body, length)
            wanted = (protocol.parsed(text, binary) if len(text) <= _SMALL_BYTES
                      else await self._in_thread(protocol.parsed, text, binary))
        if wanted.timeout_us is not None:
            until = time.monotonic() + wanted.timeout_us / 1e6
            deadline = until if deadline is None else min(deadline, until)
        # the network may have been read again while this request came in
        model = self.models.by_name[name]
        left = None if deadline is None else deadline - time.monotonic()
        arriving = self._exchange.submit(model.batcher, wanted.arrays, left)
        try:
            result = await (arriving if left is None else asyncio.wait_for(arriving, left))
        except TimeoutError:
            raise DeadlineError("the deadline passed before the answer was there") from None
        results = result if isinstance(result, tuple) else (result,)
        outputs: dict[str, np.ndarray] = {
            info.name: array for info, array in zip(model.plan.outputs, results, strict=True)}
        numbers = sum(array.size for array in outputs.values())
        content, head_length = (
            protocol.answer(name, wanted, outputs) if numbers <= _FEW_NUMBERS or wanted.binary
            else await self._in_thread(protocol.answer, name, wanted, outputs))
        if head_length is None:
            return Response(content, media_type="application/json")
        return Response(content, media_type=_BINARY,
                        headers={protocol.HEADER_LENGTH: str(head_length)})

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, function, *arguments)

    async def answer(self, name: str, headers: Mapping[str, str], receive: Receive) -> Response:
        """Returns the answer to a request for inference, whether the request succeeds or fails, and
        counts the answer.

        headers: values of the headers, by their names in lower case.
        receive: ASGI's function that returns the parts of the body.
        """
        start = time.monotonic()
        try:
            response = await self._infer(name, headers, receive)
        except Exception as error:
            response = _error_response(name, error)
            _forget_frames(error)
        if response.status_code in (408, 413, 429) or self.is_ending:
            # the rest of the body may not have been read, or the server takes no further requests
            response.headers["Connection"] = "close"
        self.metrics.count(name if name in self.models.by_name else "", response.status_code,
                           time.monotonic() - start)
        return response


def _error_response(name: str, error: Exception) -> Response:
    """Returns the answer for an error of a request for inference."""
    if isinstance(error, _Refusal):
        return _error(error.status, str(error))
    if isinstance(error, QueueFullError):
        response = _error(429, str(error))
        response.headers["Retry-After"] = "1"
        return response
    if isinstance(error, DeadlineError):
        return _error(504, str(error))
    if isinstance(error, InputError):
        return _error(400, str(error))
    if isinstance(error, ClientDisconnect):
        return _error(400, "the client has left")
    if isinstance(error, GossamerError):
        logger.error("%s: %s", name, error)
        return _error(503, str(error))
    logger.error("%s: a fault of the server: %s: %s", name, type(error).__name__, error)
    return _error(500, "a fault of the server")


def _forget_frames(error: BaseException | None) -> None:
    """Drops the frames in the tracebacks of an error and of the errors before it. These frames hold
    the request's body, and the future that holds the error: a cycle that only the next garbage
    collection would free."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status)


class _App(FastAPI):
    """The application. Requests for inference bypass FastAPI, whose layers would take as long for a
    request as all of gossamer's own code."""

    server: Server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = (_INFERENCE.fullmatch(scope["path"])
                 if scope["type"] == "http" and scope["method"] == "POST" else None)
        if found is None:
            await super().__call__(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1")
                   for name, value in scope["headers"]}
        response = await self.server.answer(found[1], headers, receive)
        await response(scope, receive, send)


def make_app(server: Server) -> FastAPI:
    """Returns the application of a server."""
    app = _App(title="gossamer", version=PACKAGE_VERSION, docs_url=None, redoc_url=None,
               openapi_url=None)
    app.server = server

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        response = _error(error.status_code, str(error.detail))
        response.headers.update(error.headers or {})
        return response

    def model_of(name: str) -> Any:
        if name not in server.models.by_name:
            raise HTTPException(404, f"there is no model {quoted(name)}")
        return server.models.by_name[name]

    @app.get("/v2/health/live")
    async def live() -> Response:
        return Response()

    @app.get("/v2/health/ready")
    async def ready() -> Response:
        return _error(503, "the server is ending") if server.is_ending else Response()

    @app.get("/v2")
    async def about() -> Response:
        return JSONResponse({"name": "gossamer", "version": PACKAGE_VERSION,
                             "extensions": ["binary_tensor_data"]})

    @app.get("/v2/models/{name}")
    async def description(name: str) -> Response:
        return JSONResponse(model_of(name).description())

    @app.api_route("/v2/models/{name}/infer",
                   methods=["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
    async def only_post(name: str) -> Response:
        raise HTTPException(405, "inference takes POST", {"Allow": "POST"})

    @app.get("/v2/models/{name}/ready")
    async def model_ready(name: str) -> Response:
        model_of(name)
        return await ready()

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(server.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app
