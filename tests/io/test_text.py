"""Tests of counts and shares as text."""

import pytest

from gossamer.io.text import share_text


@pytest.mark.parametrize(("share", "text"), [
    (0.0, "0%"), (1e-9, "<0.1%"), (0.0004, "<0.1%"), (0.0006, "0.1%"), (0.003, "0.3%"),
    (0.005, "0.5%"), (0.01, "1%"), (0.1, "10%"), (0.99, "99%"),
    (0.997, "99.7%"), (0.9996, ">99.9%"), (1.0, "100%")])
def test_only_nothing_is_0_and_only_all_is_100_percent(share: float, text: str) -> None:
    assert share_text(share) == text
