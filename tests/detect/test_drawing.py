"""Colours of the text on labels."""

from __future__ import annotations

import pytest

from gossamer.detect.drawing import _ink

BLACK, WHITE = (0, 0, 0), (255, 255, 255)


@pytest.mark.parametrize(("colour", "ink"), [
    ((129, 129, 129), BLACK), ((127, 127, 127), WHITE), (WHITE, BLACK), (BLACK, WHITE),
    ((0, 255, 0), BLACK), ((255, 0, 0), WHITE), ((0, 0, 255), WHITE)])
def test_text_is_black_on_light_colours(colour: tuple[int, int, int],
                                        ink: tuple[int, int, int]) -> None:
    assert _ink(colour) == ink
