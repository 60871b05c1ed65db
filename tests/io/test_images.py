import io

import numpy as np
import pytest
from PIL import Image

from gossamer.errors import InputError
from gossamer.io import images
from gossamer.io.images import PRESETS, Preprocessing, load_image

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


def test_unreadable_files_are_named(tmp_path):
    png = io.BytesIO()
    noise = np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(png, "PNG")
    files = {"absent.png": None, "text.png": b"hello", "empty.png": b"",
             "cut.png": png.getvalue()[:2000], "bad.jpg": b"\xff\xd8\xff\xe0" + bytes(100)}
    for name, content in files.items():
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InputError, match=name) as caught:
            load_image(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="folder"):
        load_image(tmp_path)


def test_every_pixel_too_many_is_refused(tmp_path, monkeypatch):
    path = saved(tmp_path, Image.fromarray(RGB))
    monkeypatch.setattr(images, "MOST_PIXELS", 53)
    with pytest.raises(InputError, match=r"9 pixels wide and 6 high, too .*down to 53 or fewer"):
        load_image(path)


@pytest.mark.parametrize("form", ["TIFF", "EPS", "DDS", "ICO", "PDF"])
def test_other_formats_are_refused_whatever_their_name(tmp_path, form):
    path = tmp_path / "photo.png"
    Image.fromarray(RGB).save(path, form)
    with pytest.raises(InputError, match=r"photo.png: not an image that can be read; expected PNG"):
        load_image(path)


def test_arrays_have_an_option_of_their_own(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, RGB)
    with pytest.raises(InputError, match=r"x.npy: not an image .*; an array is given by --input"):
        load_image(path)


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


def test_batch_stacks_and_refuses_ragged_images():
    plain = PRESETS["none"]
    np.testing.assert_array_equal(plain.batch([RGB, RGB])[1], RGB.transpose(2, 0, 1))
    with pytest.raises(InputError, match="--size"):
        plain.batch([RGB, RGB[:4]])


@pytest.mark.parametrize("options, word", [
    ({"channels": "rgba"}, "channel order"),
    ({"rounding": "up"}, "rounding"),
    ({"mean": (1.0, 2.0)}, "mean has 2 numbers"),
    ({"channels": "grey", "std": (1.0, 1.0, 1.0)}, "std has 3 numbers"),
    ({"std": (1.0, 0.0, 1.0)}, "zero"),
    ({"size": (0, 4)}, "size 0x4: lengths are 1 to 16384"),
    ({"resize": 0}, "resize 0"),
    ({"size": (4, 100_000)}, "4x100000"),
    ({"mean": (float("nan"),)}, "mean nan"),
    ({"std": (1.0, float("inf"), 1.0)}, "std"),
    ({"scale": float("inf")}, "scale inf"),
    ({"size": (224, 224), "resize": 200}, "less than size"),
])
def test_impossible_preprocessing_is_refused(options, word):
    with pytest.raises(InputError, match=word):
        Preprocessing(**options)


def test_long_and_narrow_photos_are_not_blown_up():
    with pytest.raises(InputError, match="1x5000 is too long"):
        Preprocessing(size=(8, 8), resize=9)(np.zeros((1, 5000, 3), np.uint8))
