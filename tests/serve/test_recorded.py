"""Records of what the protocol reads of requests, what it refuses and what it answers."""

from __future__ import annotations

import copy
import itertools
import json
import random
from typing import Any

import numpy as np
import pytest

from gossamer.model.graph import ValueInfo
from gossamer.serve import protocol
from gossamer.serve.protocol import DATATYPES, InferRequest
from tests.recorded import Recorded, as_text
from tests.recorded.outcomes import outcome


def read(body: Any, binary: bytes = b"") -> str:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return outcome(protocol.parsed, text, memoryview(binary)).replace(
        ", ".join(DATATYPES.values()), "the datatypes")


WHOLE = {"id": "7", "parameters": {"timeout": 5000, "binary_data_output": True}, "inputs": [
    {"name": "a", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 8}},
    {"name": "b", "shape": [1, 2], "datatype": "INT8", "data": [-3, 4]}],
    "outputs": [{"name": "y"}, {"name": "z", "parameters": {"binary_data": False}}]}
VALUES = (None, True, False, 0, 1, -1, 2, 0.5, "", "x", [], [1], {}, {"name": 1}, 10**15, 1e400)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Returns the path to each part of a JSON value."""
    found = [path]
    items: Any = value.items() if isinstance(value, dict) else (
        enumerate(value) if isinstance(value, list) else ())
    for key, part in items:
        found += paths(part, (*path, key))
    return found


def test_requests_with_one_other_part(recorded: Recorded) -> None:
    found = {"whole": read(WHOLE, bytes(range(8)))}
    for path in paths(WHOLE)[1:]:
        for value in ("absent", *VALUES):
            body = copy.deepcopy(WHOLE)
            part: Any = body
            for key in path[:-1]:
                part = part[key]
            if value == "absent":
                del part[path[-1]]
            else:
                part[path[-1]] = value
            name = ".".join(map(str, path))
            text = read(body, bytes(range(8)))
            found[f"{name} {value!r}".replace(": ", "=")] = text if "Request" not in text else (
                text.replace("InferRequest(arrays=", "(").replace("outputs=", ""))
    for count in (0, 7, 9, 16):
        found[f"{count} bytes"] = read(WHOLE, bytes(count))
    for body in (b"", b"{", b"[]", b"3", b"null", b'{"inputs": NaN}', b"[" * 3):
        found[f"body {body!r}".replace(": ", "=")] = read(body).split(": ")[0]
    recorded("serve_requests", found)


def test_tensors(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    datas = ([], [0], [1], [True, False], [0, 1], [[0, 1]], [[0], [1]], [-1, 0], [255, 256],
             [127, 128], [-128, -129], [2**31 - 1, 2**31], [2**63 - 1, 0], [2**63, 0],
             [2**64 - 1, 0], [2**64, 0], [0.5, 1], [1e39, 0], ["a", "b"], [None, 1], [[1], [1, 2]],
             [[]], "ab", {}, 3)
    for datatype, data in itertools.product(DATATYPES.values(), datas):
        text = read({"inputs": [{"name": "x", "shape": [2], "datatype": datatype, "data": data}]})
        found[f"{datatype} {data}"] = text[:150]
    for shape in ([], [0], [2], [1, 2], [2, 1], [2, 0], [-1], [2.0], [True], [2**31 - 1], [2**31],
                  [1] * 31 + [2], [1] * 32 + [2], "2", None):
        for data in ([], [1, 2], [1]):
            found[f"shape {shape} {data}"] = read({"inputs": [
                {"name": "x", "shape": shape, "datatype": "FP32", "data": data}]})[:200]
    for datatype, size in itertools.product((*DATATYPES.values(), "FP128", 3), range(0, 18)):
        found[f"binary {datatype} {size}"] = read({"inputs": [
            {"name": "x", "shape": [2], "datatype": datatype,
             "parameters": {"binary_data_size": size}}]}, bytes(range(size)))[:150]
    for given in (15, 16, 17):
        found[f"given {given}"] = read({"inputs": [
            {"name": "x", "shape": [2], "datatype": "FP64",
             "parameters": {"binary_data_size": 16}}]}, bytes(given))
    for timeout in (0, 1e-9, 1, 0.5, 1e15 - 1, 1e15, -1, True, "1"):
        found[f"timeout {timeout}"] = read({"inputs": [], "parameters": {"timeout": timeout}})
    monkeypatch.setattr(protocol, "MOST_JSON_BYTES", 14)
    for body in (b'{"inputs": []}', b'{"inputs": [] }', b'{"inputs":[]}'):
        found[f"length {len(body)}"] = read(body)
    recorded("serve_tensors", found)


def test_bodies_are_split(recorded: Recorded) -> None:
    found = {}
    for length in (None, "", "0", "4", "5", "6", "-1", "+4", " 4", "4.0", "\u0664", "x",
                   "0" * 17 + "4", "0" * 18 + "4", "1" * 18):
        found[f"length {length!a}"] = outcome(protocol.split, b"12345", length, text=lambda parts: (
            as_text([parts[0].decode(), bytes(parts[1]).decode()])))
    recorded("serve_split", found)


def test_answers(recorded: Recorded) -> None:
    rng = random.Random(0)
    found = {}
    arrays = {"y": np.arange(6, dtype=np.float32).reshape(2, 3), "z": np.array(3, np.int64),
              "b": np.array([True, False]), "e": np.zeros((0, 2), np.uint8)}
    for index in range(40):
        outputs = {name: arrays[name] for name in rng.sample(list(arrays), rng.randint(1, 4))}
        wanted = {name: rng.random() < 0.5 for name in rng.sample(list(arrays), rng.randint(0, 2))}
        request = InferRequest({}, rng.choice([None, "", "7"]), wanted, rng.random() < 0.5)
        found[f"answer {index} {list(outputs)} {wanted} {request.id!r} {request.binary}".replace(
            ": ", "=")] = outcome(protocol.answer, "net", request, outputs, text=lambda parts: (
                f"{parts[0]!r} {parts[1]}"))
    for dtype, shape in itertools.product(("float32", "bool", "string", "bfloat16"),
                                          ((None, 3), (), (0, 2))):
        found[f"described {dtype} {shape}"] = as_text(protocol.described(
            ValueInfo("x", shape, dtype)))
    recorded("serve_answers", found)
