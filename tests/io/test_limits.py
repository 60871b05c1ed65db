"""Limits on the memory that a file may ask for."""

import pytest

from gossamer.errors import InputError
from gossamer.io import limits


def test_numbers_of_bytes_have_binary_units():
    for text, number in {" 7 ": 7, "8G": 2**33, "2 KiB": 2048, "4mb": 2**22, "1tib": 2**40}.items():
        assert limits.bytes_of(text, "x") == number


@pytest.mark.parametrize(("variable", "packed", "unpacked", "inputs", "batch", "value"), [
    ("", 2**23, 2**28, 0, 4, 2**28), ("", 2**23 + 1, 2**28 + 32, 0, 5, 5 * 2**26),
    (" ", 2**25, 2**30, 2**22, 0, 2**29), ("", 0, 2**28, 2**30, 0, 2**32),
    ("", 0, 2**28, 2**30, 65, 65 * 2**26), ("5k", 2**30, 5120, 2**30, 65, 5120)])
def test_limits_grow(monkeypatch, variable, packed, unpacked, inputs, batch, value):
    monkeypatch.setenv(limits.VARIABLE, variable)
    monkeypatch.setattr(limits, "host_memory", lambda: 2**33)
    assert limits.most_value_bytes(inputs, batch) == value
    limits.check_unpacked("a.gz", unpacked, packed)
    needed = unpacked // 2**30 + 1
    with pytest.raises(InputError, match=f"^a.gz: unpacks .* set GOSSAMER_MAX_BYTES={needed}G$"):
        limits.check_unpacked("a.gz", unpacked + 1, packed)
