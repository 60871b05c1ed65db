"""Photos come to the input's size as Darknet's resize_image() and letterbox_image() do it."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.detect.placement import STYLES, fitted, place

DARKNET, YOLOX, YOLOV8 = STYLES["yolo"], STYLES["yolox"], STYLES["yolov8"]


def darknets_resize(image: np.ndarray, width: int, height: int) -> np.ndarray:
    """Return a photo of another size, pixel by pixel as resize_image() of Darknet's image.c."""
    old_height, old_width, channels = image.shape
    part = np.zeros((old_height, width, channels))
    result = np.zeros((height, width, channels))
    for column in range(width):
        if column == width - 1 or old_width == 1:
            part[:, column] = image[:, old_width - 1]
        else:
            place = column * (old_width - 1) / (width - 1)
            left, share = int(place), place - int(place)
            part[:, column] = (1 - share) * image[:, left] + share * image[:, left + 1]
    for row in range(height):
        place = row * (old_height - 1) / (height - 1) if height > 1 else 0
        top, share = int(place), place - int(place)
        result[row] = (1 - share) * part[top]
        if row < height - 1 and old_height > 1:
            result[row] += share * part[top + 1]
    return result


@pytest.mark.parametrize("photo", [(7, 11), (40, 31), (1, 1), (1, 20), (20, 1), (16, 24)])
def test_stretched(photo: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*photo, 3), dtype=np.uint8)
    placement = place(photo, (16, 24), "stretch", DARKNET)
    result = fitted(image, placement, (16, 24), DARKNET)
    np.testing.assert_allclose(result, darknets_resize(image, 24, 16), atol=2e-3)


@pytest.mark.parametrize(("photo", "inner"), [
    ((10, 40), (6, 24)), ((40, 10), (16, 4)), ((16, 24), (16, 24)), ((1, 20_000), (1, 24)),
    ((20_000, 1), (16, 1)), ((1, 1), (16, 16))])
def test_letterboxed(photo: tuple[int, int], inner: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*photo, 3), dtype=np.uint8)
    placement = place(photo, (16, 24), "letterbox", DARKNET)
    top, left = (16 - inner[0]) // 2, (24 - inner[1]) // 2
    assert (placement.top, placement.left, placement.height, placement.width) == (
        top, left, *inner)
    result = fitted(image, placement, (16, 24), DARKNET)
    expected = np.full((16, 24, 3), 127.5)
    expected[top:top + inner[0], left:left + inner[1]] = darknets_resize(image, inner[1], inner[0])
    np.testing.assert_allclose(result, expected, atol=2e-3)


def test_the_styles_of_others() -> None:
    cv2 = pytest.importorskip("cv2", reason='pip install "opencv-python-headless<5"')
    image = np.random.default_rng(0).integers(0, 256, (30, 20, 3), dtype=np.uint8)
    for style, left in ((YOLOX, 0), (YOLOV8, 6)):
        placement = place((30, 20), (24, 28), "letterbox", style)
        assert (placement.left, placement.top, placement.width, placement.height) == (
            left, 0, 16, 24)
        result = fitted(image, placement, (24, 28), style)
        expected = cv2.resize(image.astype(np.float32), (16, 24))
        np.testing.assert_allclose(result[:, left:left + 16], expected, atol=1e-2)
        assert (np.delete(result, range(left, left + 16), axis=1) == 114).all()


def test_grey_photos() -> None:
    image = np.random.default_rng(0).integers(0, 256, (9, 5), dtype=np.uint8)
    placement = place((9, 5), (4, 4), "letterbox", DARKNET)
    colour = fitted(np.stack([image] * 3, axis=2), placement, (4, 4), DARKNET)
    np.testing.assert_array_equal(fitted(image, placement, (4, 4), DARKNET), colour[:, :, 0])


@pytest.mark.parametrize("resize", ["stretch", "letterbox"])
@pytest.mark.parametrize("photo", [(30, 20), (20, 30), (7, 7)])
def test_boxes_come_back(photo: tuple[int, int], resize: str) -> None:
    placement = place(photo, (64, 64), resize, DARKNET)
    whole = np.array([[placement.left, placement.top, placement.left + placement.width,
                       placement.top + placement.height]])
    np.testing.assert_allclose(placement.to_photo(whole), [[0, 0, photo[1], photo[0]]])
