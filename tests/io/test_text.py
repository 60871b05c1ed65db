"""Tests of counts and shares as text, and of the names of classes."""

import pytest

from gossamer.io.labels.reader import class_names, without_blanks
from gossamer.io.text import bytes_text, human, share_text


def test_counts_are_rounded_before_their_unit_is_chosen():
    for text, base, units in ((human, 1e3, ["", "k", "M", "G", "T"]),
                              (bytes_text, 2**10, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"])):
        for power in range(len(units) - 1):
            for count in (base ** (power + 1) * (1 - 1e-6), base ** (power + 1)):
                if power:
                    assert text(int(count)) == f"1 {units[power + 1]}"
        for count in (1, 12, 123, 1234, 56_789, 912_345, 4_567_890, 98_765 * 10**9):
            number, _, unit = text(count).partition(" ")
            assert float(number) * base ** units.index(unit) == pytest.approx(count, rel=5e-3)


@pytest.mark.parametrize(("share", "text"), [
    (0.0, "0%"), (1e-9, "<0.1%"), (0.0004, "<0.1%"), (0.0006, "0.1%"), (0.003, "0.3%"),
    (0.005, "0.5%"), (0.01, "1%"), (0.1, "10%"), (0.99, "99%"),
    (0.997, "99.7%"), (0.9996, ">99.9%"), (1.0, "100%")])
def test_only_nothing_is_0_and_only_all_is_100_percent(share: float, text: str) -> None:
    assert share_text(share) == text


def test_imagenet_names_ship_with_the_package():
    names = class_names(None, 1000)
    assert names[285] == "Egyptian cat" and names[0] == "tench" and names[999] == "toilet tissue"
    assert class_names(None, 10) is None and class_names(None, 2, ["own"]) is None
    assert class_names(None, 2, ["own"] * 2) == ["own"] * 2


def test_empty_names_count_where_the_number_of_classes_says_so() -> None:
    assert without_blanks(["cat", "", "dog"], 2) == ["cat", "dog"]
    assert without_blanks(["cat", "", "dog"], 3) == ["cat", "", "dog"]
    assert without_blanks(["cat", ""], 5) == ["cat", ""]


def test_a_file_names_every_class(tmp_path):
    path = tmp_path / "names"
    path.write_bytes(b"\xef\xbb\xbfa \n\n b\n\n\n")
    assert class_names(path, 3, ["own"] * 3) == ["a", "", "b"]
