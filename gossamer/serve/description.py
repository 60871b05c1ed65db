"""What the server's description by OpenAPI says of requests and answers."""

from __future__ import annotations

from typing import Any

from gossamer.serve.checks import PICTURES
from gossamer.serve.protocol import DATATYPES, HEADER_LENGTH

DEADLINE = "Deadline-Ms"
"""The header with the milliseconds after which an answer is of no use."""
BINARY = "application/octet-stream"
"""The media type of tensors in binary."""

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
    400: "The request is wrong; the answer says what was expected.",
    403: "Host is not a name of this server.",
    404: "There is no such network.",
    405: "The address takes another method.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    415: "Bodies of this type are not read.",
    429: "The queue or the memory for requests is full; try again later.",
    431: "The head is too long.",
    500: "A fault of the server.",
    503: "The device failed, or the server is ending.",
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
"""The schemas of answers in JSON."""


def responses(schema: str = "", *errors: int) -> dict[int | str, Any]:
    """Returns the answers of an address by their status. schema: a name of SCHEMAS; "" for an
    answer without content."""
    success = (_answer("Success.", SCHEMAS[schema]) if schema else {"description": "Success."})
    return {200: success, **{status: _answer(_WHY[status], _ERROR)
                             for status in sorted({400, 403, 431, *errors})}}


INFERENCE: dict[str, Any] = {
    # no parameter: programs that try described requests would take 504 for a fault
    "description": f"The header {DEADLINE} may state the milliseconds after which the answer is of "
                   "no use.",
    "parameters": [{
        "name": HEADER_LENGTH, "in": "header", "required": False,
        "description": "Bytes of the JSON, where binary tensors follow it.",
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
"""The operation of inference."""
