"""The HTTP application: routes, limits, and the answer to each error."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from gossamer.errors import DeadlineError, GossamerError, InputError, QueueFullError, quoted
from gossamer.io.images import ImageSizeError
from gossamer.io.text import bytes_text
from gossamer.serve import checks, protocol
from gossamer.serve.checks import Memory, Refusal, Share
from gossamer.serve.connection import Exchange
from gossamer.serve.metrics import Metrics
from gossamer.serve.models import BINARY, DEADLINE, INFERENCE, Models, ServedModel, responses
from gossamer.serve.workers import Workers
from gossamer.version import PACKAGE_VERSION

logger = logging.getLogger("gossamer.serve")

_INFERENCE = re.compile("/v2/models/([^/]+)/infer")
_SMALL_BYTES = 2**15
"""Largest number of bytes of JSON that the event loop itself parses. Longer JSON would delay other
requests, and is parsed by another process."""
_LARGE_BYTES = 2**21
"""Parsing more bytes of JSON than this is a large task; few large tasks run at the same time."""
_FEW_NUMBERS = 2**12
"""Largest number of values that the event loop itself writes as JSON. More values are written by
another process."""
_MANY_NUMBERS = 2**18
"""Writing more values than this as JSON is a large task."""
_MANY_PIXELS = 2**22
"""Decoding a picture with more pixels than this is a large task."""
_BODIES_AT_ONCE = 6
"""Memory limit of all requests together, as a multiple of the largest allowed body."""
_PIECE = 2**20
"""Number of bytes of a response that are written at a time. While a client reads slowly, further
bytes are not copied to the connection's buffer."""
_LINGER_S = 2.0
"""If a response is sent before the whole body has arrived, the rest of the body is read and
discarded for at most this many seconds."""
_STATUSES = {QueueFullError: 429, DeadlineError: 504, InputError: 400, GossamerError: 503}
"""HTTP statuses of errors. The first class that fits an error counts."""


async def _pieces(parts: Sequence[bytes | memoryview]) -> AsyncIterator[bytes]:
    """Yield the bytes of a response, at most _PIECE at a time."""
    for part in parts:
        for start in range(0, len(part), _PIECE):
            yield bytes(part[start:start + _PIECE])


class _Receive:
    """An ASGI function that receives the parts of a body.

    is_whole: whether the last part has arrived.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_whole = False

    async def __call__(self) -> Message:
        message = await self._receive()
        self.is_whole = not message.get("more_body", False)
        return message

    async def respond(self, response: Response, scope: Scope, send: Send) -> None:
        """Send a response.

        If the response closes the connection before the whole body has arrived, the rest of the
        body is first read and discarded, for up to _LINGER_S seconds. If the connection were closed
        immediately, further bytes from the client would cause a TCP reset, and the client's system
        would discard the response.
        """
        if self.is_whole or response.headers.get("connection") != "close":
            await response(scope, self, send)
            return
        await send({"type": "http.response.start", "status": response.status_code,
                    "headers": response.raw_headers})
        await send({"type": "http.response.body", "body": response.body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while not self.is_whole:
                    await self()
        await send({"type": "http.response.body", "body": b""})


class Server:
    """The state of an application.

    most_bytes: largest number of bytes in a body.
    most_json: largest number of bytes in a JSON response.
    most_pixels: largest number of pixels in a picture.
    body_seconds: time limit for sending a body, in seconds.
    hosts: the names with a dot that are allowed in the header Host; None allows any name. Names
    without a dot and IP addresses are always allowed.
    is_ending: whether the server is shutting down; each response then closes its connection.
    """

    def __init__(self, models: Models, *, most_bytes: int = 2**26, most_json: int = 2**26,
                 most_pixels: int = 2**24, body_seconds: float = 30.0,
                 hosts: Collection[str] | None = None) -> None:
        self.models = models
        self.metrics = Metrics(models)
        self.is_ending = False
        self.hosts = hosts
        self.memory = Memory(_BODIES_AT_ONCE * most_bytes)
        self.workers = Workers()
        self._most_bytes = most_bytes
        self._most_json = most_json
        self._most_pixels = most_pixels
        self._body_seconds = body_seconds
        self._exchange = Exchange()

    async def renew(self) -> None:
        """Reload the networks with changed files.

        Requests that are already waiting are computed by a network's old plan, later requests by
        its new plan.
        """
        loop = asyncio.get_running_loop()
        for name, model in (await loop.run_in_executor(None, self.models.renewals)).items():
            old = self.models.by_name[name]
            self.models.by_name[name] = model
            self._exchange.hand_over()
            await loop.run_in_executor(None, old.close)
            self.metrics.keep_batches(old)
            logger.warning("%s was reloaded", name)

    def close(self) -> None:
        """Compute the waiting requests, and free all resources."""
        self.models.close()
        self.workers.close()

    async def _infer(self, name: str, headers: Mapping[str, str], receive: Receive,
                     share: Share) -> Response:
        """Return the response to an inference request; answer() handles the errors raised here."""
        if name not in self.models.by_name:
            raise Refusal(404, self.models.unknown(name))
        deadline = self._deadline(headers)
        kind = checks.media_type(headers)
        encoding = checks.content_encoding(headers)
        # no local variable holds the body, so that its memory is freed before the inference
        wanted = await self._wanted(name, kind, headers, share,
                                    await self._body(headers, receive, encoding, share))
        if wanted.timeout_us is not None:
            until = time.monotonic() + wanted.timeout_us / 1e6
            deadline = until if deadline is None else min(deadline, until)
        # looked up only now: the network may have been reloaded while the body arrived
        model = self.models.by_name[name]
        images = model.checked_images(wanted.arrays)
        left = None if deadline is None else deadline - time.monotonic()
        arriving = self._exchange.submit(model.batcher, wanted.arrays, left)
        try:
            result = await (arriving if left is None else asyncio.wait_for(arriving, left))
        except TimeoutError:
            raise DeadlineError("the deadline passed before the outputs were computed") from None
        self.metrics.count_images(name, images)
        wanted = replace(wanted, arrays={})  # to free their memory
        results = result if isinstance(result, tuple) else (result,)
        share.set(sum(array.nbytes for array in results))
        return await self._response(name, wanted, {
            info.name: array for info, array in zip(model.plan.outputs, results, strict=True)},
            share)

    async def _body(self, headers: Mapping[str, str], receive: Receive, encoding: str,
                    share: Share) -> bytes | bytearray:
        """Return the decompressed body of a request."""
        body = bytearray()
        self._check_size(int(headers.get("content-length", 0)))
        try:
            async with asyncio.timeout(self._body_seconds):
                is_whole = False
                while not is_whole:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refusal(400, "the client closed the connection")
                    body += message.get("body", b"")
                    self._check_size(len(body))
                    share.set(len(body))
                    is_whole = not message.get("more_body", False)
        except TimeoutError:
            raise Refusal(408, f"the body did not arrive within {self._body_seconds:g} s"
                          ) from None
        if not encoding:
            return body
        content: bytes = await self.workers.in_thread(checks.unpacked, body, encoding,
                                                      self._most_bytes)
        share.set(len(content))
        return content

    def _check_size(self, size: int) -> None:
        if size > self._most_bytes:
            raise Refusal(413, f"the body is larger than {bytes_text(self._most_bytes)}; send "
                               "fewer images at once")

    @staticmethod
    def _deadline(headers: Mapping[str, str]) -> float | None:
        """Return a request's deadline on the monotonic clock; None without a deadline."""
        text = headers.get(DEADLINE.lower())
        if text is None:
            return None
        try:
            milliseconds = float(text)
        except ValueError:
            milliseconds = -1.0
        if not 0 < milliseconds < 1e9:
            raise Refusal(400, f"{DEADLINE} is {quoted(text)}, expected a positive number of "
                               "milliseconds")
        return time.monotonic() + milliseconds / 1e3

    async def _wanted(self, name: str, kind: str, headers: Mapping[str, str], share: Share,
                      body: bytes | bytearray) -> protocol.InferRequest:
        """Parse a request from its body.

        kind: the body's media type, "" for tensors.
        """
        length = headers.get(protocol.HEADER_LENGTH.lower())
        if kind:
            if length is not None:
                protocol.stated_length(length)
            arrays = await self._picture(self.models.by_name[name], bytes(body))
            return protocol.InferRequest(arrays, binary=BINARY in headers.get("accept", ""))
        text, binary = protocol.split(body, length)
        if len(text) <= _SMALL_BYTES:
            return protocol.parsed(text, binary)
        wanted = await self.workers.call(protocol.parsed_json, text, len(binary),
                                         what="parsed JSON", is_large=len(text) > _LARGE_BYTES)
        wanted = protocol.with_binary(wanted, binary)
        share.set(sum(array.nbytes for array in wanted.arrays.values()))
        return wanted

    async def _picture(self, model: ServedModel, body: bytes) -> dict[str, np.ndarray]:
        decode = model.picture().arrays
        what = "decoded a picture"
        few = min(self._most_pixels, _MANY_PIXELS)
        try:
            # the number of pixels is known only after decoding
            return await self.workers.call(decode, body, few, what=what)
        except ImageSizeError:
            return await self.workers.call(decode, body, self._most_pixels, what=what,
                                           is_large=True)

    async def _response(self, name: str, wanted: protocol.InferRequest,
                        outputs: Mapping[str, np.ndarray], share: Share) -> Response:
        """Return the response with a request's outputs."""
        tensors = protocol.wanted_outputs(wanted, outputs)
        numbers = sum(each.numbers.size for each in tensors if each.numbers is not None)
        protocol.check_json(numbers, self._most_json)
        arguments = (name, wanted.id, tensors, self._most_json)
        text = (protocol.written(*arguments) if numbers <= _FEW_NUMBERS else
                await self.workers.call(protocol.written, *arguments, what="wrote JSON",
                                        is_large=numbers > _MANY_NUMBERS))
        parts = [text, *(protocol.binary_data(outputs[each.name]) for each in tensors
                         if each.numbers is None)]
        size = sum(map(len, parts))
        share.set(size)
        media_type = "application/json"
        headers = {}
        if len(parts) > 1:
            media_type = BINARY
            headers = {protocol.HEADER_LENGTH: str(len(text))}
        if size <= _PIECE:
            return Response(b"".join(parts), media_type=media_type, headers=headers)
        return StreamingResponse(_pieces(parts), media_type=media_type,
                                 headers={**headers, "Content-Length": str(size)})

    async def answer(self, name: str, headers: Mapping[str, str], receive: Receive,
                     share: Share) -> Response:
        """Return the response to an inference request, also after an error.

        The response is counted in the metrics.

        headers: values of the headers, by their names in lower case.
        receive: ASGI's function that returns the parts of the body.
        share: the request's share of the memory.
        """
        start = time.monotonic()
        try:
            response = await self._infer(name, headers, receive, share)
        except Exception as error:
            response = _error_response(name, error)
            _forget_frames(error)
        if response.status_code in (408, 413, 415, 429) or self.is_ending:
            # part of the body may be unread, or the server accepts no further requests
            response.headers["Connection"] = "close"
        self.metrics.count(name if name in self.models.by_name else "", response.status_code,
                           time.monotonic() - start)
        return response


def _error_response(name: str, error: Exception) -> Response:
    """Return the response for an error of an inference request."""
    status = error.status if isinstance(error, Refusal) else next(
        (status for kind, status in _STATUSES.items() if isinstance(error, kind)), 500)
    if status == 500:
        logger.error("%s: internal server error", name, exc_info=error)
        return _error(500, "internal server error; the server's log has the details")
    if status == 503:
        logger.error("%s: %s", name, error)
    response = _error(status, str(error))
    if status == 429:
        response.headers["Retry-After"] = "1"
    return response


def _forget_frames(error: BaseException | None) -> None:
    """Delete the tracebacks of an error and its context.

    The frames of the tracebacks refer to the request's body, and to a future that refers to the
    error. Without the deletion, only the garbage collector would free this reference cycle.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status)


class _App(FastAPI):
    """The application.

    Inference requests bypass FastAPI, which needs as much time for each request as gossamer's own
    code.
    """

    server: Server

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI description, which names the networks."""
        if self.openapi_schema is None:
            for path in super().openapi()["paths"].values():
                for operation in path.values():
                    # FastAPI adds 422 for parameters of a wrong type, but any text is a valid name
                    operation["responses"].pop("422", None)
                    for parameter in operation.get("parameters", ()):
                        if parameter["in"] == "path":
                            parameter["schema"]["enum"] = list(self.server.models.by_name)
        assert self.openapi_schema is not None
        return self.openapi_schema

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        try:
            checks.check_head(scope["http_version"], scope["headers"], self.server.hosts)
        except Refusal as refusal:
            response = _error(refusal.status, str(refusal))
            response.headers["Connection"] = "close"
            await _Receive(receive).respond(response, scope, send)
            return
        found = _INFERENCE.fullmatch(scope["path"]) if scope["method"] == "POST" else None
        if found is None:
            # HEAD is computed like GET, and uvicorn omits the content of the response
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            await super().__call__({**scope, "method": method}, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1")
                   for name, value in scope["headers"]}
        whole = _Receive(receive)
        with self.server.memory.share() as share:
            response = await self.server.answer(found[1], headers, whole, share)
            await whole.respond(response, scope, send)


def make_app(server: Server) -> FastAPI:
    """Return the application of a server."""
    app = _App(title="gossamer", version=PACKAGE_VERSION, docs_url=None, redoc_url=None,
               redirect_slashes=False, default_response_class=Response,
               description="Inference with networks by the Open Inference Protocol, version 2.")
    app.server = server

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        response = _error(error.status_code, str(error.detail))
        response.headers.update(error.headers or {})
        return response

    def model_of(name: str) -> ServedModel:
        if name not in server.models.by_name:
            raise HTTPException(404, server.models.unknown(name))
        return server.models.by_name[name]

    @app.get("/v2/health/live", responses=responses())
    async def live() -> Response:
        return Response()

    @app.get("/v2/health/ready", responses=responses("", 503))
    async def ready() -> Response:
        return _error(503, "the server is shutting down") if server.is_ending else Response()

    @app.get("/v2", responses=responses("server"))
    async def about() -> Response:
        return JSONResponse({"name": "gossamer", "version": PACKAGE_VERSION, "extensions": [
            "binary_tensor_data", "model_configuration", "statistics", "model_repository"]})

    @app.get("/v2/models/stats", responses=responses("statistics"))
    async def all_statistics() -> Response:
        return _statistics(server, server.models.by_name)

    @app.get("/v2/models/{name}", responses=responses("model", 404))
    async def description(name: str) -> Response:
        return JSONResponse(model_of(name).description())

    @app.get("/v2/models/{name}/config", responses=responses("config", 404))
    async def config(name: str) -> Response:
        return JSONResponse(model_of(name).config())

    @app.get("/v2/models/{name}/stats", responses=responses("statistics", 404))
    async def statistics(name: str) -> Response:
        model_of(name)
        return _statistics(server, [name])

    @app.post("/v2/repository/index", responses=responses("index"))
    async def index() -> Response:
        return JSONResponse([{"name": name, "version": "", "state": "READY", "reason": ""}
                             for name in server.models.by_name])

    @app.post("/v2/models/{name}/infer", openapi_extra=INFERENCE)
    @app.api_route("/v2/models/{name}/infer", include_in_schema=False,
                   methods=["GET", "PUT", "PATCH", "DELETE", "OPTIONS"])
    async def only_post(name: str) -> Response:
        raise HTTPException(405, "inference requests must use POST", {"Allow": "POST"})

    @app.get("/v2/models/{name}/ready", responses=responses("", 404, 503))
    async def model_ready(name: str) -> Response:
        model_of(name)
        return await ready()

    @app.get("/metrics", responses={200: {"content": {"text/plain": {}}}, **{
        status: answer for status, answer in responses().items() if status != 200}})
    async def metrics() -> Response:
        return Response(generate_latest(server.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


def _statistics(server: Server, names: Collection[str]) -> Response:
    return JSONResponse({"model_stats": [
        server.metrics.statistics(name, server.models.by_name[name]) for name in names]})
