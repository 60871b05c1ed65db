import contextlib
import io
import itertools
import math
import os
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gossamer.errors import ModelError
from gossamer.model.readers.torch.state_dict import read_tensors
from gossamer.model.readers.torch.unpickle import MalformedPickle, load
from tests.model import torch_files as tf

FUZZ = settings(derandomize=True, max_examples=300, deadline=None)
WEIGHT = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
BIAS = np.array([-1, 2, 2**40], dtype=np.int64)


def containers(content, arrays):
    """Returns the same content as a zip file and as a file of torch before 1.6."""
    raw = {key: array.tobytes() for key, array in arrays.items()}
    return [
        tf.zip_file(content, raw),
        tf.legacy_file(content, {key: (array.size, raw[key]) for key, array in arrays.items()}),
    ]


def good_files():
    content = tf.mapping({"weight": tf.tensor_of("0", WEIGHT), "bias": tf.tensor_of("1", BIAS)})
    return containers(content, {"0": WEIGHT, "1": BIAS})


def read(tmp_path, data):
    path = tmp_path / "weights.pth"
    path.write_bytes(data)
    return read_tensors(path)


def refused(tmp_path, data, *reasons):
    with pytest.raises(ModelError) as caught:
        read(tmp_path, data)
    message = str(caught.value)
    assert "weights.pth" in message and "\n" not in message
    assert any(reason in message for reason in reasons), message
    return message


@pytest.mark.parametrize("data", good_files(), ids=["zip", "legacy"])
def test_reads_both_containers(tmp_path, data):
    tensors = read(tmp_path, data)
    assert list(tensors) == ["weight", "bias"]
    np.testing.assert_array_equal(tensors["weight"], WEIGHT)
    np.testing.assert_array_equal(tensors["bias"], BIAS)
    assert tensors["weight"].dtype == np.float32 and tensors["bias"].dtype == np.int64
    for array in tensors.values():
        assert array.flags["C_CONTIGUOUS"] and array.flags["OWNDATA"] and array.flags["WRITEABLE"]


@pytest.mark.slow
@settings(FUZZ, max_examples=100)
@given(array=hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.float16, np.int64, np.int32, np.int16, np.int8,
                     np.uint8, np.bool_]),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)),
       order=st.permutations(range(4)))
def test_reads_every_dtype_and_stride(tmp_path_factory, array, order):
    permuted = array.transpose([axis for axis in order if axis < array.ndim])
    content = tf.mapping({"a": tf.tensor_of("0", permuted)})
    for data in containers(content, {"0": array}):
        got = read(tmp_path_factory.getbasetemp(), data)["a"]
        assert got.dtype == array.dtype and got.shape == permuted.shape
        assert got.tobytes() == permuted.tobytes()


def test_bfloat16_comes_as_float32(tmp_path):
    values = np.array([1.0, -2.5, 0.15625], dtype=np.float32)
    upper = (values.view(np.uint32) >> 16).astype(np.uint16)
    content = tf.mapping({"a": tf.tensor_of("0", upper, "BFloat16Storage")})
    for data in containers(content, {"0": upper}):
        np.testing.assert_array_equal(read(tmp_path, data)["a"], values)


def test_tensors_may_share_a_storage(tmp_path):
    base = np.arange(10, dtype=np.float32)
    stored = tf.storage("0", 10)
    content = tf.mapping({"head": tf.tensor(stored, 0, (4,), (1,)),
                          "odd": tf.tensor(stored, 1, (5,), (2,))})
    for data in containers(content, {"0": base}):
        tensors = read(tmp_path, data)
        np.testing.assert_array_equal(tensors["head"], base[:4])
        np.testing.assert_array_equal(tensors["odd"], base[1::2])


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_finds_a_nested_state_dict(tmp_path, key):
    inner = tf.mapping({"weight": tf.tensor_of("0", WEIGHT)})
    content = tf.mapping({"epoch": tf.integer(3), key: inner})
    for data in containers(content, {"0": WEIGHT}):
        assert list(read(tmp_path, data)) == ["weight"]


def test_parameters_are_tensors(tmp_path):
    parameter = tf.call(tf.name("torch._utils", "_rebuild_parameter"),
                        tf.tensor_of("0", WEIGHT), b"\x88",
                        tf.call(tf.name("collections", "OrderedDict")))
    for data in containers(tf.mapping({"weight": parameter}), {"0": WEIGHT}):
        np.testing.assert_array_equal(read(tmp_path, data)["weight"], WEIGHT)


HUGE = 2**62
BAD_TENSORS = {
    "reaches past the end": (0, (25,), (1,)),
    "offset past the end": (20, (5,), (1,)),
    "negative offset": (-1, (4,), (1,)),
    "negative size": (0, (-4,), (1,)),
    "negative stride": (23, (4,), (-1,)),
    "huge size": (0, (HUGE,), (1,)),
    "overflowing product": (0, (2**40, 2**40), (1, 1)),
    "huge with a zero": (0, (0, 2**40, 2**40), (1, 1, 1)),
    "huge stride": (0, (2,), (HUGE,)),
    "expanded by stride 0": (0, (1000, 1000), (0, 0)),
    "shape and strides differ": (0, (2, 3), (1,)),
    "too many dimensions": (0, (1,) * 40, (1,) * 40),
}


@pytest.mark.parametrize("case", BAD_TENSORS, ids=lambda case: case.replace(" ", "-"))
@pytest.mark.parametrize("container", [0, 1], ids=["zip", "legacy"])
def test_refuses_tensors_outside_their_storage(tmp_path, case, container):
    content = tf.mapping({"a": tf.tensor(tf.storage("0", 24), *BAD_TENSORS[case])})
    refused(tmp_path, containers(content, {"0": WEIGHT})[container], "has a tensor")


@pytest.mark.parametrize("size", [-1, 23, 25, 2**40, HUGE])
def test_refuses_storages_of_another_size_than_the_file_has(tmp_path, size):
    content = tf.mapping({"a": tf.tensor(tf.storage("0", size), 0, (1,), (1,))})
    for data in containers(content, {"0": WEIGHT}):
        refused(tmp_path, data, "storage", "has a tensor")


def test_refuses_more_tensors_than_the_file_can_hold(tmp_path):
    shared = {f"copy{i}": tf.tensor_of("0", np.zeros(4096, np.float32)) for i in range(80)}
    for data in containers(tf.mapping(shared), {"0": np.zeros(4096, np.float32)}):
        refused(tmp_path, data, "claims")


class Evil:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_refuses_code_and_does_not_run_it(tmp_path, protocol):
    marker = tmp_path / "ran"
    body = pickle.dumps({"weight": Evil(marker)}, protocol)
    bare = body.removesuffix(b".")
    files = [body, tf.zip_file(bare, {}), tf.legacy_file(bare, {})]
    for data in files:
        refused(tmp_path, data, "system'", "pickle instruction", "does not begin")
    assert not marker.exists()


@pytest.mark.parametrize("module, attribute", [
    ("os", "system"), ("builtins", "eval"), ("builtins", "getattr"), ("numpy", "load"),
    ("torch", "load"), ("torch.nn.modules.linear", "Linear"), ("torch._utils", "_rebuild_qtensor"),
])
def test_refuses_every_other_name(tmp_path, module, attribute):
    content = tf.mapping({"a": tf.call(tf.name(module, attribute), tf.text("x"))})
    for data in containers(content, {}):
        refused(tmp_path, data, f"{module}.{attribute}")


def test_refuses_instances(tmp_path):
    for body in (b"(ios\nsystem\n", b"(cos\nsystem\no", b"cos\nsystem\n)\x81"):
        refused(tmp_path, tf.zip_file(body, {}), "pickle instruction")


@pytest.mark.slow
def test_survives_what_breaks_unpicklers(tmp_path):
    deep = b")" + b"\x85" * 200_000
    refused(tmp_path, tf.zip_file(deep, {}), "no named tensors")
    refused(tmp_path, tf.zip_file(b"}" + deep + b"Ns", {}), "key of type tuple")
    kind_deep = b"(" + tf.text("storage") + deep + tf.text("0") * 2 + b"K\x01tQ"
    refused(tmp_path, tf.zip_file(kind_deep, {}), "storage of type 'tuple'")
    refused(tmp_path, tf.zip_file(b"}r\xff\xff\xff\xff", {}), "no named tensors")
    refused(tmp_path, tf.zip_file(b"B\xff\xff\xff\x7f", {}), "damaged", "instruction")
    refused(tmp_path, tf.zip_file(b"X\xff\xff\xff\x7f", {}), "damaged")
    refused(tmp_path, tf.zip_file(b"}h\x07", {}), "does not hold")
    refused(tmp_path, tf.zip_file(b"R", {}), "more values")
    refused(tmp_path, tf.zip_file(b"t", {}), "more values")
    refused(tmp_path, tf.zip_file(b"]]", {}), "does not end with a single value")


@pytest.mark.parametrize("data, reason", [
    (b"", "does not begin"),
    (b"not a checkpoint", "does not begin"),
    (b"PK\x03\x04" + bytes(40), "zip archive"),
    (tf.whole(tf.integer(1234)), "does not begin"),
    (tf.zip_file(tf.mapping({}), {}), "no named tensors"),
    (tf.zip_file(tf.mapping({"a": tf.tensor_of("0", WEIGHT)}), {}), "lacks the storage"),
    (tf.legacy_file(tf.mapping({"a": tf.tensor_of("0", WEIGHT)}), {}), "lacks the storage"),
    (tf.zip_file(tf.mapping({"a": tf.tensor_of("0", WEIGHT)}), {"0": WEIGHT.tobytes()},
                 byteorder=b"big"), "little-endian"),
    (tf.legacy_file(tf.mapping({}), {}, little_endian=False), "little-endian"),
    (tf.zip_file(tf.mapping({"a": tf.tensor_of("0", WEIGHT)}), {"0": WEIGHT.tobytes()},
                 compression=zipfile.ZIP_DEFLATED), "compressed"),
    (tf.legacy_file(tf.mapping({"a": tf.tensor_of("0", WEIGHT)}), {"0": (23, WEIGHT.tobytes())}),
     "two sizes"),
])
def test_says_what_is_wrong(tmp_path, data, reason):
    refused(tmp_path, data, reason)


@pytest.mark.parametrize("step", [
    *(bytes([byte]) for byte in b"\x85\x86\x87tldeaus"), b"\x94h\x00", b"q\x03h\x03",
    b"\x8a\x02\xfe\xff", b"G?\xf8\0\0\0\0\0\0", b"M\x01\x02", b"J\xfe\xff\xff\xff"])
def test_instructions_are_those_of_pythons_pickles(step):
    for values in itertools.product((b"(", b"]", b"}", b"K\x05", b"\x8c\x01a", b""), repeat=3):
        for end in (b".", b"\x85.", b"\x86.", b"\x87."):
            body = b"\x80\x04" + b"".join(values) + step + end
            with contextlib.suppress(MalformedPickle):
                assert load(io.BytesIO(body), None, None) == pickle.loads(body)


def test_missing_file_and_folder(tmp_path):
    for path in (tmp_path / "absent.pth", tmp_path):
        with pytest.raises(ModelError, match="cannot be read"):
            read_tensors(path)


@pytest.mark.parametrize("container", [0, 1], ids=["zip", "legacy"])
def test_every_truncation_is_refused(tmp_path, container):
    data = good_files()[container]
    # all of the first and of the last bytes, where headers and directories are
    for length in {*range(120), *range(0, len(data), 5), *range(len(data) - 120, len(data))}:
        refused(tmp_path, data[:length], "not a readable torch checkpoint")


@pytest.mark.parametrize("cut", [1, 20, 32])
def test_a_file_that_ends_within_a_storage_is_called_truncated(tmp_path, cut):
    """The last storage is that of three int64 behind their number."""
    assert "ends within the storage '1'" in refused(tmp_path, good_files()[1][:-cut], "truncated")


@pytest.mark.parametrize("container", [0, 1], ids=["zip", "legacy"])
def test_damage_gives_an_error_or_arrays(tmp_path, container):
    data = good_files()[container]

    @FUZZ
    @given(st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), min_size=1,
                    max_size=4))
    def damage(changes):
        damaged = bytearray(data)
        for position, value in changes:
            damaged[position] = value
        try:
            tensors = read(tmp_path, bytes(damaged))
        except ModelError as error:
            assert "\n" not in str(error)
        else:
            assert tensors and all(type(array) is np.ndarray for array in tensors.values())
            assert sum(array.nbytes for array in tensors.values()) <= 8 * len(damaged)

    damage()


@FUZZ
@given(st.lists(st.sampled_from([
    tf.text("a"), tf.integer(-1), tf.storage("0", 24), tf.tensor_of("0", WEIGHT),
    tf.name("os", "system"), tf.name("collections", "OrderedDict"),
    *(bytes([byte]) for byte in b"()]}NRQbtesu0acdlo2\x85\x86\x87\x88\x93\x94\x81"),
    b"q\x00", b"h\x00",
]), max_size=30))
def test_any_run_of_instructions_is_harmless(tmp_path_factory, parts):
    data = tf.zip_file(b"".join(parts), {"0": WEIGHT.tobytes()})
    try:
        tensors = read(tmp_path_factory.getbasetemp(), data)
    except ModelError:
        return
    assert all(math.prod(array.shape) <= 24 for array in tensors.values())
