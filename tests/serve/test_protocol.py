"""The Open Inference Protocol: what is read as a request, what is refused, and what is answered."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import InputError
from gossamer.serve.protocol import (
    DATATYPES,
    InferRequest,
    binary_data,
    check_json,
    parsed,
    split,
    wanted_outputs,
    written,
)


def request(body: Any, binary: bytes = b"") -> InferRequest:
    return parsed(json.dumps(body).encode(), memoryview(binary))


def tensor(shape: Any = (2,), datatype: Any = "FP32", **more: Any) -> dict[str, Any]:
    return {"name": "x", "shape": shape, "datatype": datatype, **more}


@pytest.mark.parametrize(("dtype", "datatype"), DATATYPES.items())
def test_numbers_of_every_datatype(dtype: str, datatype: str) -> None:
    x = np.array([[0, 1, 1], [1, 0, 1]], dtype)
    for data in (x.tolist(), x.reshape(-1).tolist()):
        read = request({"inputs": [tensor([2, 3], datatype, data=data)]}).arrays["x"]
        assert read.dtype == x.dtype
        np.testing.assert_array_equal(read, x)
    raw = x.tobytes()
    read = request({"inputs": [tensor([2, 3], datatype,
                                      parameters={"binary_data_size": len(raw)})]}, raw).arrays["x"]
    assert read.dtype == x.dtype
    np.testing.assert_array_equal(read, x)


def test_binary_and_json_inputs_together() -> None:
    raw = np.float32([1, 2]).tobytes()
    body = {"id": "7", "parameters": {"timeout": 5000, "binary_data_output": True}, "inputs": [
        {"name": "a", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 8}},
        {"name": "b", "shape": [1], "datatype": "INT64", "data": [-3]},
        {"name": "c", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}],
        "outputs": [{"name": "y"}, {"name": "z", "parameters": {"binary_data": False}}]}
    read = request(body, raw + 2 * raw[:4])
    assert {name: array.tolist() for name, array in read.arrays.items()} == {
        "a": [1, 2], "b": [-3], "c": [1, 1]}
    assert read.outputs == {"y": True, "z": False} and read.binary
    assert read.timeout_us == 5000 and read.id == "7"


def test_sizes_of_zero() -> None:
    for datatype in DATATYPES.values():
        assert request({"inputs": [tensor([0, 3], datatype, data=[])]}).arrays["x"].shape == (0, 3)
    assert request({"inputs": [tensor([0], parameters={"binary_data_size": 0})]}
                   ).arrays["x"].shape == (0,)


@pytest.mark.parametrize(("body", "message"), [
    ([], r"the request is \[\], expected an object"),
    ({}, "inputs is None, expected a list"),
    ({"inputs": {}}, r"inputs is \{\}, expected a list"),
    ({"inputs": [1]}, "an input is 1, expected an object"),
    ({"inputs": [{"name": 3}]}, "the name of an input is 3, expected a string"),
    ({"inputs": [tensor(data=[1, 2]), tensor(data=[1, 2])]}, "input 'x' is given twice"),
    ({"inputs": [tensor(None)]}, "shape is None, expected a list of sizes"),
    ({"inputs": [tensor([-1])]}, r"shape is \[-1\], expected"),
    ({"inputs": [tensor([True])]}, r"shape is \[True\], expected"),
    ({"inputs": [tensor([1] * 33)]}, "expected a list of sizes"),
    ({"inputs": [tensor([2**31])]}, "expected a list of sizes"),
    *[({"inputs": [tensor(shape, data=[])]}, "is too large: the product") for shape in (
        [0, *[2**31 - 1] * 2], [*[2**31 - 1] * 3, 0], [0] + [2] * 30 + [2**31 - 1])],
    ({"inputs": [tensor()] * 1025}, "inputs has 1025 tensors, expected at most 1024"),
    ({"inputs": [tensor([0], data=[])], "id": "a" * 1025}, "id has 1025 characters"),
    ({"inputs": [tensor(data=[[]] * 2**20)]}, "more than 1048576 opening brackets"),
    ({"inputs": [tensor(datatype="BYTES")]}, "datatype is 'BYTES', expected one of BOOL, UINT8"),
    ({"inputs": [tensor(datatype=["FP32"])]}, "expected one of"),
    ({"inputs": [tensor()]}, "data is None, expected a list of numbers"),
    ({"inputs": [tensor(data="ab")]}, "data is 'ab', expected a list"),
    ({"inputs": [tensor(data=["1", "2"])]}, "expected data of datatype FP32"),
    ({"inputs": [tensor(data=[[1], [1, 2]])]}, "expected data of datatype FP32 in one list"),
    ({"inputs": [tensor(data=[None, 1])]}, "expected data of datatype FP32 in one list"),
    ({"inputs": [tensor(data=[{}, 1])]}, "expected data of datatype FP32 in one list"),
    ({"inputs": [tensor(data=[1, 2, 3])]}, "data has 3 numbers, but shape 2 needs 2"),
    ({"inputs": [tensor(datatype="UINT8", data=[1, 256])]},
     "data has numbers from 1 to 256, outside the range of datatype UINT8"),
    ({"inputs": [tensor(datatype="UINT8", data=[1, -1])]}, "numbers from -1 to 1, outside"),
    ({"inputs": [tensor(datatype="INT8", data=[1.5, 1])]}, "expected data of datatype INT8"),
    ({"inputs": [tensor([1], "INT8", data=[1.5])]}, "expected data of datatype INT8"),
    ({"inputs": [tensor(datatype="UINT8", data=[1.5, 1])]}, "expected data of datatype UINT8"),
    ({"inputs": [tensor(datatype="BOOL", data=[1, 0])]}, "expected data of datatype BOOL"),
    ({"inputs": [tensor(datatype="UINT64", data=[2**70, 1])]}, "expected data of datatype UINT64"),
    ({"inputs": [tensor(parameters={"binary_data_size": 7})]},
     "binary_data_size is 7, but 2 FP32 needs 8"),
    ({"inputs": [tensor(parameters={"binary_data_size": -8})]}, "binary_data_size is -8, expected"),
    ({"inputs": [tensor([1], "UINT8", parameters={"binary_data_size": True})]},
     "binary_data_size is True, expected a number of bytes"),
    ({"inputs": [tensor(parameters={"binary_data_size": "8"})]}, "binary_data_size is '8', expect"),
    ({"inputs": [tensor(parameters={"binary_data_size": 8.0})]}, "binary_data_size is 8.0, expect"),
    ({"inputs": [tensor(parameters=[])]}, r"parameters is \[\], expected an object"),
    ({"inputs": [tensor(parameters={"binary_data_size": 8})]},
     "needs 8 bytes of binary data, but only 0 are left"),
    ({"inputs": [], "outputs": [{"name": "y", "parameters": {"classification": 3}}]},
     "classification is not supported"),
    ({"inputs": [], "outputs": [{"name": "y", "parameters": {"binary_data": 1}}]},
     "binary_data is 1, expected true or false"),
    ({"inputs": [], "id": 5}, "id is 5, expected a string"),
    *[({"inputs": [], "parameters": {"timeout": timeout}},
       r"timeout is .*, expected microseconds above 0") for timeout in (
           -5, "5", True, [5], {}, 0, 1e15)],
])
def test_what_is_no_request(body: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        request(body)


def test_bytes_that_no_input_takes() -> None:
    with pytest.raises(InputError, match="inputs need 0 bytes of binary data, but the body has 3"):
        request({"inputs": []}, b"abc")


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000,
                                  b"9" * 10_000, b"nul"])
def test_what_is_no_json(text: bytes) -> None:
    with pytest.raises(InputError):
        parsed(text, memoryview(b""))


def test_too_much_json() -> None:
    with pytest.raises(InputError, match="the JSON has 16 MiB, more than 16 MiB; send"):
        split(b" " * (2**24 + 1), None)


@pytest.mark.parametrize("length", ["-1", "x", "", "1" * 30, f"{2:019}", "\u0663", "6"])
def test_lengths_of_json_that_do_not_fit(length: str) -> None:
    with pytest.raises(InputError, match="Inference-Header-Content-Length is"):
        split(b"12345", length)


@pytest.mark.parametrize(("length", "text"), [
    (None, b"12345"), ("2", b"12"), (f"{2:018}", b"12"), ("5", b"12345"), ("0", b"")])
def test_where_json_ends(length: str | None, text: bytes) -> None:
    found, binary = split(b"12345", length)
    assert (found, bytes(binary)) == (text, b"12345"[len(text):])


def test_answers() -> None:
    outputs = {"y": np.float32([[1.5, -2]]), "z": np.array([True])}
    tensors = wanted_outputs(InferRequest({}), outputs)
    assert json.loads(written("net", "\u00e4", tensors, 2**20)) == {
        "model_name": "net", "id": "\u00e4", "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.5, -2]},
            {"name": "z", "datatype": "BOOL", "shape": [1], "data": [True]}]}
    tensors = wanted_outputs(InferRequest({}, outputs={"z": False, "y": True}), outputs)
    assert json.loads(written("net", None, tensors, 2**20))["outputs"][1] == {
        "name": "y", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    assert bytes(binary_data(outputs["y"])) == np.float32([1.5, -2]).tobytes()
    with pytest.raises(InputError, match="there is no output 'w'; the outputs are 'y', 'z'"):
        wanted_outputs(InferRequest({}, outputs={"w": True}), outputs)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int64, np.bool_])
@pytest.mark.parametrize("count", [0, 1, 2**14, 2**14 + 1])
def test_numbers_in_pieces(dtype: Any, count: int) -> None:
    numbers = np.random.default_rng(count).integers(0, 100, (count, 1)).astype(dtype)
    tensors = wanted_outputs(InferRequest({}), {"y": numbers})
    text = written("net", None, tensors, 2**30)
    assert json.loads(text)["outputs"][0]["data"] == numbers.reshape(-1).tolist()
    assert written("net", None, tensors, len(text)) == text
    with pytest.raises(InputError, match=r"outputs are larger than .* as JSON; request them in"):
        written("net", None, tensors, len(text) - 1)
    # what is refused without being written is too long
    check_json(count, len(text))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["name", "shape", "datatype", "data", "parameters", "inputs", "outputs",
                         "binary_data_size", "id"]), inner, max_size=5), max_leaves=20)
_TENSORS = st.fixed_dictionaries(
    {"name": st.text(max_size=4) | _JSON, "shape": st.lists(st.integers(-1, 4), max_size=3) | _JSON,
     "datatype": st.sampled_from([*DATATYPES.values(), "BYTES"]) | _JSON},
    optional={"data": st.lists(st.integers() | st.floats() | _JSON, max_size=6),
              "parameters": st.fixed_dictionaries({"binary_data_size": st.integers(-1, 20)})})


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(_JSON | st.fixed_dictionaries({"inputs": st.lists(_TENSORS, max_size=3)}),
       st.binary(max_size=24))
def test_anything_is_read_or_refused(body: Any, binary: bytes) -> None:
    with contextlib.suppress(InputError):
        request(body, binary)
