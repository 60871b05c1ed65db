import io
import os

import numpy as np
import pytest
from PIL import Image

from gossamer.errors import InputError
from gossamer.io import images
from gossamer.io.images import PRESETS, Preprocessing, load_image, pictures_in

RGB = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
GREY = RGB[:, :, 0]


def saved(tmp_path, image, name="photo.png", **options):
    path = tmp_path / name
    image.save(path, **options)
    return path


def test_rgb_is_untouched(tmp_path):
    loaded = load_image(saved(tmp_path, Image.fromarray(RGB)))
    assert loaded.dtype == np.uint8
    np.testing.assert_array_equal(loaded, RGB)


def test_grey_is_repeated(tmp_path):
    loaded = load_image(saved(tmp_path, Image.fromarray(GREY)))
    np.testing.assert_array_equal(loaded, np.repeat(GREY[:, :, None], 3, axis=2))


def test_one_bit_image(tmp_path):
    loaded = load_image(saved(tmp_path, Image.fromarray(GREY > 127)))
    np.testing.assert_array_equal(loaded[:, :, 1], np.where(GREY > 127, 255, 0))


@pytest.mark.parametrize("grey", [False, True])
def test_transparency_is_laid_on_white(tmp_path, grey):
    alpha = np.full((6, 9), 255, np.uint8)
    alpha[:, :3], alpha[:, 3:6] = 0, 128
    colour = GREY[:, :, None] if grey else RGB
    image = Image.fromarray(np.dstack([colour, alpha]))
    loaded = load_image(saved(tmp_path, image)).astype(float)
    assert (loaded[:, :3] == 255).all()
    np.testing.assert_array_equal(loaded[:, 6:], np.broadcast_to(colour, RGB.shape)[:, 6:])
    expected = colour[:, 3:6] * (128 / 255) + 255 * (127 / 255)
    np.testing.assert_allclose(loaded[:, 3:6], np.broadcast_to(expected, (6, 3, 3)), atol=1)


def test_palette_with_a_transparent_entry(tmp_path):
    image = Image.fromarray(np.tile(np.arange(3, dtype=np.uint8), (6, 3))).convert("P")
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    loaded = load_image(saved(tmp_path, image, transparency=1))
    assert loaded[0, :3].tolist() == [[255, 0, 0], [255, 255, 255], [0, 0, 255]]


@pytest.mark.parametrize("name", ["photo.png", "photo.pgm"])
def test_sixteen_bits_are_scaled(tmp_path, name):
    wide = GREY.astype(np.uint16) * 257
    wide[0, :4] = [0, 127, 129, 65535]
    loaded = load_image(saved(tmp_path, Image.fromarray(wide), name))
    assert loaded[0, :4, 0].tolist() == [0, 0, 1, 255]
    np.testing.assert_array_equal(loaded[1:, :, 2], GREY[1:])


def test_cmyk_becomes_rgb(tmp_path):
    flat = np.full((16, 16, 3), (200, 100, 50), np.uint8)
    path = saved(tmp_path, Image.fromarray(flat).convert("CMYK"), "photo.jpg", quality=100)
    np.testing.assert_allclose(load_image(path).astype(int), flat, atol=2)


@pytest.mark.parametrize("orientation, turned", [
    (1, RGB), (3, RGB[::-1, ::-1]), (6, np.rot90(RGB, -1)), (8, np.rot90(RGB)),
])
def test_exif_orientation_is_applied(tmp_path, orientation, turned):
    exif = Image.Exif()
    exif[0x0112] = orientation
    loaded = load_image(saved(tmp_path, Image.fromarray(RGB), exif=exif))
    np.testing.assert_array_equal(loaded, turned)


def test_imagenet_normalises_the_centre():
    flat = np.full((300, 400, 3), (10, 100, 250), np.uint8)
    prepared = PRESETS["imagenet"](flat)
    assert prepared.shape == (3, 224, 224) and prepared.dtype == np.float32
    expected = (np.array([10, 100, 250]) / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(prepared[:, 100, 100], expected, rtol=1e-5)


def test_crop_takes_the_centre_of_the_resized_short_side():
    wide = np.zeros((256, 512, 3), np.uint8)
    wide[:, 144:368] = 255
    prepared = Preprocessing(size=(224, 224), resize=256)(wide)
    assert (prepared == 255).all()
    assert Preprocessing(size=(224, 226), resize=256)(wide).min() == 0
    assert Preprocessing(resize=128)(wide).shape == (3, 128, 256)


def test_caffe_is_bgr_without_scale():
    flat = np.full((256, 256, 3), (10, 100, 250), np.uint8)
    prepared = PRESETS["caffe"](flat)
    assert prepared.shape == (3, 227, 227)
    assert prepared[:, 0, 0].tolist() == [250 - 104, 100 - 117, 10 - 123]


def test_signed8_steps_are_multiples_of_one_128th():
    ramp = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=2)
    got = PRESETS["signed8"](ramp)[0, 0].astype(np.float64)
    v = np.arange(256, dtype=np.float64)
    expected = np.clip(np.floor((v / 255 * 2 - 1) * 128) / 128, -1, 127 / 128)
    np.testing.assert_array_equal(got, expected)


def test_binary_is_one_from_the_middle_up():
    image = np.repeat(np.array([[0, 127, 128, 255]], np.uint8)[:, :, None], 3, axis=2)
    assert PRESETS["binary"](image).tolist() == [[[-1, -1, 1, 1]]]


@pytest.mark.parametrize("preset, shape, size, resize", [
    ("imagenet", (None, 3, 224, 224), (224, 224), 256),
    ("imagenet", (None, 3, 448, 448), (448, 448), 512),
    ("imagenet", (None, 3, None, None), (224, 224), 256),
    ("imagenet", (None, 3, 112, 448), (112, 448), 512),
    ("imagenet", (None, 3, None, 448), (224, 224), 256),
    ("imagenet", (None, 3, 448, None), (224, 224), 256),
    ("imagenet", (None, None), (224, 224), 256),
    ("none", (None, 3, 32, 48), (32, 48), None),
    ("binary", (None, 784), (28, 28), None),
    ("unit", (None, 3072), (32, 32), None),
])
def test_fitted_to_a_network(preset, shape, size, resize):
    fitted = PRESETS[preset].fitted(shape)
    assert (fitted.size, fitted.resize) == (size, resize)


def test_a_row_of_numbers_is_a_square_unless_the_size_has_as_many():
    wide = Preprocessing((2, 12), channels="grey")
    assert wide.fitted((None, 24)) is wide and wide.fitted((None, 25)).size == (5, 5)
    assert Preprocessing((3, 4)).fitted((None, 12)).size == (2, 2)


@pytest.mark.parametrize("rounding", images.ROUNDINGS)
@pytest.mark.parametrize("channels", images.CHANNEL_ORDERS)
def test_prepared_photos_are_those_of_numpy(channels, rounding):
    grey = np.asarray(Image.fromarray(RGB).convert("L"))[:, :, None]
    numbers = np.array([2.0] if channels == "grey" else [1.0, 0.25, 0.5])
    made = Preprocessing((2, 5), 6, channels, 1 / 128, tuple(numbers), tuple(numbers), rounding)
    pixels = {"rgb": RGB, "bgr": RGB[:, :, ::-1], "grey": grey}[channels][2:4, 2:7]
    values = (pixels / 128 - numbers) / numbers
    values = {"none": values, "signed8": np.floor(values * 128).clip(-128, 127) / 128,
              "sign": np.where(values < 0, -1, 1)}[rounding]
    np.testing.assert_array_equal(made.pixels(RGB), pixels, strict=True)
    np.testing.assert_array_equal(made(RGB), values.transpose(2, 0, 1).astype("f4"), strict=True)


def test_a_batch_stacks_images():
    np.testing.assert_array_equal(PRESETS["none"].batch([RGB, RGB])[1], RGB.transpose(2, 0, 1))


WRONG = [
    {"channels": "rgba"}, {"rounding": "up"}, {"mean": (1.0, 2.0)},
    {"channels": "grey", "std": (1.0, 1.0, 1.0)}, {"std": (1.0, 0.0, 1.0)}, {"size": (0, 4)},
    {"resize": 0}, {"size": (4, 100_000)}, {"mean": (float("nan"),)},
    {"std": (1.0, float("inf"), 1.0)}, {"scale": float("inf")},
    {"size": (224, 224), "resize": 200}]


def test_what_is_no_photo_is_named(tmp_path, monkeypatch, golden):
    photo = io.BytesIO()
    noise = np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(photo, "PNG")
    np.save(tmp_path / "x.npy", RGB)
    files = {"text.png": b"hello", "empty.png": b"", "cut.png": photo.getvalue()[:2000],
             "bad.jpg": b"\xff\xd8\xff\xe0" + bytes(100)}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    forms = ("TIFF", "EPS", "DDS", "ICO", "PDF")
    for form in forms:
        Image.fromarray(RGB).save(tmp_path / f"{form}.png", form)
    saved(tmp_path, Image.fromarray(np.zeros((1, 64 * 64 + 1), np.uint8)), "large.png")
    (tmp_path / "folder.png").mkdir()
    monkeypatch.setattr(images, "MOST_PIXELS", 64 * 64)
    golden.refusals("photos: files", {
        name: lambda name=name: load_image(tmp_path / name)
        for name in ("absent.png", *files, *(f"{form}.png" for form in forms), "x.npy",
                     "large.png", "folder.png")}, tmp_path)


def test_impossible_preprocessing_is_refused(golden):
    narrow = np.zeros((1, 5000, 3), np.uint8)
    golden.refusals("photos: preprocessing", {
        **{str(options): lambda options=options: Preprocessing(**options) for options in WRONG},
        "sizes of their own": lambda: PRESETS["none"].batch([RGB, RGB[:4]]),
        "long and narrow": lambda: Preprocessing(size=(8, 8), resize=9)(narrow)})


def test_pictures_of_all_folders_in_the_order_of_their_paths(tmp_path):
    for name in ("b/1.png", "a/2.JPG", "a/10.jpeg", "c.webp", "a/d/1.ppm", "notes.txt", "a/x.npy",
                 ".git/1.png", "a/.cache.png"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    os.symlink(tmp_path, tmp_path / "a" / "loop")
    pictures, others = pictures_in(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in pictures] == [
        "a/10.jpeg", "a/2.JPG", "a/d/1.ppm", "b/1.png", "c.webp"]
    assert others == 2


def test_a_folder_without_pictures(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"")
    with pytest.raises(InputError, match=r"contains no images \(\.bmp, .*\), but 1 other file$"):
        pictures_in(tmp_path)
    with pytest.raises(InputError, match="absent: cannot be read: No such file"):
        pictures_in(tmp_path / "absent")
