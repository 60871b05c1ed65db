"""The networks of a server, and OpenAPI descriptions of responses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.errors import GossamerError, InputError, did_you_mean, quoted
from gossamer.io.images import LONGEST, Preprocessing, decode_image
from gossamer.model.graph import ValueInfo
from gossamer.model.photos import as_taken
from gossamer.plan.batcher import Batcher
from gossamer.plan.plan import Plan
from gossamer.plan.plan_group import PlanGroup
from gossamer.plan.run.binding import is_lossless
from gossamer.serve.checks import PICTURES
from gossamer.serve.protocol import DATATYPES, HEADER_LENGTH, described

logger = logging.getLogger("gossamer.serve")


@dataclass(frozen=True)
class Loaded:
    """A loaded network.

    plan: the plan that computes the network.
    prepare: the preprocessing of pictures for the network; None if it is unknown.
    """

    plan: Plan | PlanGroup
    prepare: Preprocessing | None


@dataclass(frozen=True)
class BatchOptions:
    """The options of a network's batcher.

    latency: time limit in seconds for results; None without a limit.
    most: largest number of images in a batch.
    queue: largest number of waiting images.
    """

    latency: float | None = None
    most: int = 64
    queue: int = 1024


class ServedModel:
    """A network that a server offers under a name.

    files: the network's files; if they change, renewed() reloads the network.
    load: function that loads the network.
    plan: the plan that computes the network.
    batcher: combines requests into batches for the plan.
    """

    def __init__(self, name: str, files: Sequence[Path], load: Callable[[], Loaded],
                 options: BatchOptions) -> None:
        self.name = name
        self._files = files
        self._load = load
        self._options = options
        self._stamps = self._stamps_now()
        logger.info("%s: loading %s", name, ", ".join(map(str, files)) or "the network")
        loaded = load()
        self.plan = loaded.plan
        self._prepare = loaded.prepare
        logger.info("%s: measuring batch sizes", name)
        self.batcher = Batcher(self.plan, options.latency, most=options.most, queue=options.queue)
        logger.info("%s: ready", name)

    def _stamps_now(self) -> list[tuple[int, int] | None]:
        """Return the modification time and size of each file; None for a missing file."""
        stamps: list[tuple[int, int] | None] = []
        for file in self._files:
            try:
                status = file.stat()
                stamps.append((status.st_mtime_ns, status.st_size))
            except OSError:
                stamps.append(None)
        return stamps

    def renewed(self) -> ServedModel | None:
        """Reload and return the network; None if its files are unchanged.

        Raises GossamerError if the network cannot be read.
        """
        if self._stamps_now() == self._stamps:
            return None
        return ServedModel(self.name, self._files, self._load, self._options)

    def close(self) -> None:
        """Compute the waiting requests, then free the memory of the devices."""
        self.batcher.close()
        self.plan.close()

    def description(self) -> dict[str, Any]:
        """Return the protocol's description of the network."""
        return {"name": self.name, "versions": [], "platform": "gossamer",
                "inputs": [described(info) for info in self.plan.inputs],
                "outputs": [described(info) for info in self.plan.outputs]}

    def config(self) -> dict[str, Any]:
        """Return the network's configuration in the format of Triton's extension."""
        infos = (self.plan.inputs, self.plan.outputs)
        # Triton's dims exclude the batch dimension if max_batch_size is above 0
        is_free = all(info.shape[:1] == (None,) for group in infos for info in group)
        inputs, outputs = (
            [{"name": each["name"], "data_type": f"TYPE_{each['datatype']}",
              "dims": each["shape"][int(is_free):]} for each in map(described, group)]
            for group in infos)
        return {"name": self.name, "platform": "gossamer", "backend": "gossamer",
                "max_batch_size": self._options.most if is_free else 0,
                "input": inputs, "output": outputs}

    def checked_images(self, arrays: Mapping[str, np.ndarray]) -> int:
        """Check a request's inputs, and return its number of images.

        Raises InputError if the names or datatypes are not those of the network.
        """
        infos, images = self.plan.inputs, 1
        names = [info.name for info in infos]
        if arrays.keys() != set(names):
            raise InputError(f"model {quoted(self.name)} needs the inputs "
                             f"{', '.join(map(quoted, names))}, but the request has "
                             f"{', '.join(map(quoted, arrays)) or 'none'}")
        for info in infos:
            array = arrays[info.name]
            given = array.dtype.name
            if info.dtype in DATATYPES and not is_lossless(given, info.dtype):
                raise InputError(f"input {quoted(info.name)} has datatype {DATATYPES[given]}, "
                                 f"expected {DATATYPES[info.dtype]}, or one that converts to it "
                                 "without loss")
            if info.shape[:1] == (None,) and array.ndim:
                images = len(array)
        return images

    def picture(self) -> Picture:
        """Return the network's input with the preprocessing of pictures for it.

        Raises InputError if the preprocessing is unknown.
        """
        if self._prepare is None:
            raise InputError(f"{self.name}: the preprocessing of images is unknown; send tensors, "
                             "or start the server with --preprocess")
        return Picture(self.plan.graph.inputs[0], self._prepare)


@dataclass(frozen=True)
class Picture:
    """A network's input, and the preprocessing of pictures for it."""

    info: ValueInfo
    prepare: Preprocessing

    def arrays(self, body: bytes, most_pixels: int) -> dict[str, np.ndarray]:
        """Return the network's input for one picture.

        body: the bytes of the picture's file.
        Raises InputError if the picture cannot be read, and ImageSizeError if it has more than
        `most_pixels` pixels.
        """
        photo = decode_image(body, most_pixels=most_pixels, longest=LONGEST)
        return {self.info.name: as_taken(self.prepare, self.info, photo)[None]}


class Models:
    """The networks of a server, by name."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.by_name: dict[str, ServedModel] = {model.name: model for model in models}

    def unknown(self, name: str) -> str:
        """Return the error message for an unknown name."""
        return f"there is no model {quoted(name)}{did_you_mean(name, self.by_name)}"

    def renewals(self) -> Mapping[str, ServedModel]:
        """Reload the networks with changed files, and return them.

        Networks that cannot be read are skipped, with a message in the log.
        """
        found = {}
        for name, model in self.by_name.items():
            try:
                if (renewed := model.renewed()) is not None:
                    found[name] = renewed
            except GossamerError as error:
                logger.error("%s cannot be reloaded; its old version is kept: %s", name, error)
            except Exception:
                logger.exception("%s cannot be reloaded; its old version is kept", name)
        return found

    def close(self) -> None:
        """Close all networks."""
        for model in self.by_name.values():
            model.close()


DEADLINE = "Deadline-Ms"
"""Header with the milliseconds after which the client no longer needs a response."""
BINARY = "application/octet-stream"
"""Media type of binary tensors."""

_BYTES = {"schema": {"type": "string", "format": "binary"}}
_TEXT = {"type": "string"}
_SIZES = {"type": "array", "items": {"type": "integer"}}


def _object(required: str = "", **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required.split()}


def _list(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": of}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _answer(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": _json(schema)}


_ERROR = _object("error", error=_TEXT)
_WHY = {
    400: "The request is wrong; the response says what was expected.",
    403: "The Host header is not a name of this server.",
    404: "There is no such network.",
    405: "The path does not support this method.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The media type or encoding of the body is not supported.",
    429: "The queue or the memory for requests is full; try again later.",
    431: "The request header is too large.",
    500: "Internal server error.",
    503: "The device failed, or the server is shutting down.",
    504: "The deadline passed.",
}
_TENSOR = _object("name datatype shape", name=_TEXT, shape=_SIZES,
                  datatype={"type": "string", "enum": list(DATATYPES.values())})
_DESCRIBED = _object("name versions platform inputs outputs", name=_TEXT, versions=_list(_TEXT),
                     platform=_TEXT, inputs=_list(_TENSOR), outputs=_list(_TENSOR))
_PARAMETERS = {"type": "object"}
_INPUT = _object("name datatype shape", **_TENSOR["properties"], parameters=_PARAMETERS,
                 data={"type": "array", "items": {}})
_REQUEST = _object(
    "inputs", id=_TEXT, parameters=_PARAMETERS, inputs=_list(_INPUT),
    outputs=_list(_object("name", name=_TEXT, parameters=_PARAMETERS)))
_STATISTICS = _object("model_stats", model_stats=_list(_object(
    "name version inference_count execution_count", name=_TEXT, version=_TEXT,
    inference_count={"type": "integer"}, execution_count={"type": "integer"})))

SCHEMAS: dict[str, dict[str, Any]] = {
    "server": _object("name version extensions", name=_TEXT, version=_TEXT,
                      extensions=_list(_TEXT)),
    "model": _DESCRIBED,
    "config": _object("name platform max_batch_size input output", name=_TEXT, platform=_TEXT,
                      max_batch_size={"type": "integer"}, input=_list({"type": "object"}),
                      output=_list({"type": "object"})),
    "statistics": _STATISTICS,
    "index": _list(_object("name version state reason", name=_TEXT, version=_TEXT, state=_TEXT,
                           reason=_TEXT)),
}
"""The schemas of JSON responses, by name."""


def responses(schema: str = "", *errors: int) -> dict[int | str, Any]:
    """Return the description of a route's responses, by status.

    schema: key in SCHEMAS of the successful response; "" for a response without content.
    errors: statuses of errors, in addition to those of every route.
    """
    success = (_answer("Success.", SCHEMAS[schema]) if schema else {"description": "Success."})
    return {200: success, **{status: _answer(_WHY[status], _ERROR)
                             for status in sorted({400, 403, 431, *errors})}}


INFERENCE: dict[str, Any] = {
    # DEADLINE is not listed as a parameter: programs that test a server by its description would
    # send it, and report status 504 as a fault
    "description": f"The header {DEADLINE} may specify the milliseconds after which the client no "
                   "longer needs the response.",
    "parameters": [{
        "name": HEADER_LENGTH, "in": "header", "required": False,
        "description": "Length of the JSON in bytes, if binary tensors follow it.",
        "schema": {"type": "integer", "minimum": 0}}],
    "requestBody": {"required": True, "content": {
        **_json(_REQUEST), BINARY: _BYTES, **dict.fromkeys(PICTURES, _BYTES)}},
    "responses": {
        **{str(status): answer for status, answer in responses(
            "", 404, 408, 413, 415, 429, 500, 503, 504).items()},
        "200": {"description": "The outputs.", "content": {
            **_json(_object("model_name outputs", model_name=_TEXT, id=_TEXT,
                            outputs=_list(_INPUT))), BINARY: _BYTES}}},
}
"""The OpenAPI description of a request for inference."""
