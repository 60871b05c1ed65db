"""Photos: image files, and how they are prepared for a network.

Pillow is imported only when the first photo is read. Every network needs this module for its
metadata, but not every network gets photos.
"""

from __future__ import annotations

import io
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gossamer.errors import InputError, first_line, one_of, similar_file

if TYPE_CHECKING:
    from PIL import Image


CHANNEL_ORDERS = ("rgb", "bgr", "grey")
ROUNDINGS = ("none", "signed8", "sign")
LONGEST = 16384
"""The longest side, in pixels, to which a photo may be scaled."""
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM")
"""The formats of photos that are read, by Pillow's names."""
MOST_PIXELS = 2**26
"""The most pixels of a photo that is read. Memory holds several copies of it at once, with 4 bytes
a pixel."""


@dataclass(frozen=True)
class Preprocessing:
    """Steps that turn a photo into a network's input.

    A photo is scaled and cropped, and its numbers v, from 0 to 255, become
    (v * scale - mean) / std, which may be rounded.

    size: (height, width) of the result; None crops nothing.
    resize: length to which the short side is scaled, before the centre is cropped to `size`. With
    None the whole photo is scaled to `size`.
    channels: "rgb", "bgr" or "grey".
    scale: factor of the photo's numbers.
    mean, std: one number for all channels, or one for each in the order of `channels`.
    rounding: "signed8" rounds down to multiples of 1/128 in [-1, 127/128]; "sign" gives -1 for
    negative numbers and 1 for others; "none" leaves the numbers as they are.
    """

    size: tuple[int, int] | None = None
    resize: int | None = None
    channels: str = "rgb"
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    rounding: str = "none"

    def __post_init__(self) -> None:
        if self.channels not in CHANNEL_ORDERS:
            raise InputError(f"channel order {self.channels!r}: "
                             f"{one_of(self.channels, CHANNEL_ORDERS)}")
        if self.rounding not in ROUNDINGS:
            raise InputError(f"rounding {self.rounding!r}: {one_of(self.rounding, ROUNDINGS)}")
        allowed = (1,) if self.channels == "grey" else (1, 3)
        for option, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in allowed:
                raise InputError(f"{option} has {len(values)} numbers; {self.channels} images "
                                 f"take {' or '.join(map(str, allowed))}")
            if not all(map(math.isfinite, values)):
                raise InputError(f"{option} {', '.join(map(str, values))}: expected finite "
                                 "numbers")
        if not math.isfinite(self.scale):
            raise InputError(f"scale {self.scale}: expected a finite number")
        if 0.0 in self.std:
            raise InputError("std has a zero; expected numbers to divide by")
        resize = () if self.resize is None else (self.resize,)
        size = "x".join(map(str, self.size or ()))
        if any(not 1 <= length <= LONGEST for length in (*(self.size or ()), *resize)):
            raise InputError(f"{f'size {size}' if size else ''}{', ' if size and resize else ''}"
                             f"{f'resize {self.resize}' if resize else ''}: lengths are 1 to "
                             f"{LONGEST}")
        if self.size and self.resize and self.resize < max(self.size):
            raise InputError(f"resize {self.resize} leaves less than size {size} to crop")

    def fitted(self, shape: Sequence[int | None]) -> Preprocessing:
        """Return this preprocessing with the size that a network's input shape asks for.

        The size stays as it is where dimensions of the shape are open. `resize` keeps its
        proportion to the size.

        shape: (N, C, H, W), or (N, C * H * W) for a network that takes a photo as one row of
        numbers. Unless the present size has the row's number of numbers, a square photo is taken.
        """
        channels = 1 if self.channels == "grey" else 3
        size = None
        if len(shape) == 4 and shape[2] and shape[3]:
            size = (shape[2], shape[3])
        elif len(shape) == 2 and shape[1] and (
                self.size is None or math.prod(self.size) * channels != shape[1]):
            side = math.isqrt(shape[1] // channels)
            size = (side, side)
        if size is None or size == self.size:
            return self
        resize = self.resize
        if resize is not None and self.size is not None:
            resize = max(round(resize * max(size) / max(self.size)), *size)
        return replace(self, size=size, resize=resize)

    def __call__(self, image: np.ndarray | Image.Image) -> np.ndarray:
        """Return the network's input for one photo, (channels, height, width) float32.

        image: the photo as open_image() or load_image() returns it, (height, width, 3) uint8.
        """
        return self.normalised(np.asarray(self._sized(image), dtype=np.float32))

    def pixels(self, image: np.ndarray | Image.Image) -> np.ndarray:
        """Return one photo scaled and cropped but not normalised, (height, width, channels) uint8.

        image: the photo as open_image() or load_image() returns it.
        """
        values = np.asarray(self._sized(image))
        values = values[:, :, None] if values.ndim == 2 else values
        return np.ascontiguousarray(values[:, :, ::-1] if self.channels == "bgr" else values)

    def normalised(self, values: np.ndarray) -> np.ndarray:
        """Return the network's input for a photo of the right size, (channels, height, width)
        float32.

        values: the photo's numbers from 0 to 255, float32, (height, width, 3) in RGB, or (height,
        width) in grey.
        """
        if self.channels == "bgr":
            values = values[:, :, ::-1]
        if values.ndim == 2:
            values = values[:, :, None]
        mean, std = (np.asarray(numbers, dtype=np.float32) for numbers in (self.mean, self.std))
        values = (values * np.float32(self.scale) - mean) / std
        if self.rounding == "signed8":
            values = np.clip(np.floor(values * 128) / 128, -1, 127 / 128)
        elif self.rounding == "sign":
            values = np.where(values >= 0, 1, -1)
        return np.ascontiguousarray(values.transpose(2, 0, 1), dtype=np.float32)

    def batch(self, images: Sequence[np.ndarray | Image.Image]) -> np.ndarray:
        """Return the prepared photos, (N, channels, height, width). Raises InputError where the
        photos have different sizes."""
        return _stacked([self(image) for image in images])

    def pixel_batch(self, images: Sequence[np.ndarray | Image.Image]) -> np.ndarray:
        """Return photos as pixels() does, (N, height, width, channels). Raises InputError where
        the photos have different sizes."""
        return _stacked([self.pixels(image) for image in images])

    def _sized(self, photo: np.ndarray | Image.Image) -> Image.Image:
        """Return the photo scaled and cropped, in grey where `channels` is "grey"."""
        from PIL import Image

        image = Image.fromarray(photo) if isinstance(photo, np.ndarray) else photo
        if self.channels == "grey":
            image = image.convert("L")
        if self.resize is not None:
            short = min(image.size)
            width, height = (self.resize * length // short for length in image.size)
            if max(width, height) > LONGEST:
                raise InputError(f"a photo of {image.height}x{image.width} is too long and narrow "
                                 f"to be scaled to a short side of {self.resize}")
            image = image.resize((width, height), Image.Resampling.BILINEAR)
            if self.size is not None:
                left = round((width - self.size[1]) / 2)
                top = round((height - self.size[0]) / 2)
                image = image.crop((left, top, left + self.size[1], top + self.size[0]))
        elif self.size is not None and image.size != self.size[::-1]:
            image = image.resize(self.size[::-1], Image.Resampling.BILINEAR)
        return image


def _stacked(photos: Sequence[np.ndarray]) -> np.ndarray:
    if len({values.shape for values in photos}) > 1:
        raise InputError("images of different sizes cannot be one batch; give --size")
    return np.stack(photos)


PRESETS = {
    "imagenet": Preprocessing(size=(224, 224), resize=256, scale=1 / 255,
                              mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    "caffe": Preprocessing(size=(227, 227), resize=256, channels="bgr",
                           mean=(104.0, 117.0, 123.0)),
    "unit": Preprocessing(scale=1 / 255),
    "signed8": Preprocessing(scale=2 / 255, mean=(1.0,), rounding="signed8"),
    "binary": Preprocessing(channels="grey", mean=(127.5,), rounding="sign"),
    "none": Preprocessing(),
}


def load_image(path: str | Path) -> np.ndarray:
    """Return a photo as (height, width, 3) uint8 in RGB. Raises the errors of open_image()."""
    return np.asarray(open_image(path))


def open_image(path: str | Path) -> Image.Image:
    """Return a photo in RGB, turned upright as its EXIF orientation says.

    Grey and palette images are expanded, transparency is laid on white, 16 bits are scaled to 8.
    The result is an image of Pillow, which can be scaled without a copy, unlike an array.

    Raises InputError for a file that is missing, is no image of FORMATS, is damaged or has more
    pixels than MOST_PIXELS.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder, expected an image file")
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is no regular file")
    return _read(path, str(path))


class ImageSizeError(InputError):
    """A photo has more pixels, or a longer side, than may be read."""


def decode_image(data: bytes, name: str = "the picture", *,
                 most_pixels: int | None = None, longest: int | None = None) -> Image.Image:
    """Return the photo in the bytes of a file, as open_image() does.

    name: the photo's name in messages.
    most_pixels: the most pixels that the photo may have (default: MOST_PIXELS).
    longest: the most pixels that a side may have (default: any number).
    Raises InputError where the bytes are no photo that can be read, and ImageSizeError where it is
    too large.
    """
    return _read(io.BytesIO(data), name, most_pixels, longest)


def _read(source: Path | io.BytesIO, name: str, most_pixels: int | None = None,
          longest: int | None = None) -> Image.Image:
    from PIL import Image, UnidentifiedImageError

    most_pixels = most_pixels or MOST_PIXELS
    try:
        with warnings.catch_warnings():
            # Pillow warns of damage that it ignores
            warnings.simplefilter("ignore")
            return _opened(source, name, most_pixels, longest)
    except FileNotFoundError:
        raise InputError(f"{name}: no such image file{similar_file(name)}") from None
    except UnidentifiedImageError:
        hint = "; give arrays by --input" if name.endswith((".npy", ".npz")) else ""
        raise InputError(f"{name}: not an image that can be read; expected "
                         f"{', '.join(FORMATS)}{hint}") from None
    except InputError:
        raise
    except Image.DecompressionBombError:
        raise ImageSizeError(f"{name}: too many pixels; scale it down to {most_pixels} or fewer "
                             "first") from None
    except Exception as error:
        # Pillow's decoders raise errors of many kinds for damaged files
        raise InputError(f"{name}: damaged image ({first_line(error)})") from None


def _opened(source: Path | io.BytesIO, name: str, most_pixels: int,
            longest: int | None) -> Image.Image:
    from PIL import Image, ImageOps

    # without a list of formats Pillow would read any that it knows, some by running other programs
    with Image.open(source, formats=FORMATS) as file:
        width, height = file.size
        if width * height > most_pixels:
            raise ImageSizeError(f"{name}: is {width} pixels wide and {height} high, too many "
                                 f"pixels; scale it down to {most_pixels} or fewer first")
        if longest is not None and max(width, height) > longest:
            raise ImageSizeError(f"{name}: is {width} pixels wide and {height} high; scale it down "
                                 f"to sides of {longest} or shorter first")
        # in place, so that an upright photo is not copied
        ImageOps.exif_transpose(file, in_place=True)
        file.load()
    return _to_rgb(file)


def _to_rgb(image: Image.Image) -> Image.Image:
    from PIL import Image

    if image.mode.startswith("I"):
        # 65535 is white: 257 levels of 16 bits become one level of 8 bits
        levels = np.asarray(image).astype(np.uint32)
        image = Image.fromarray(((levels + 128) // 257).clip(max=255).astype(np.uint8))
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.new("RGB", rgba.size, (255, 255, 255))
        image.paste(rgba, mask=rgba)
    return image if image.mode == "RGB" else image.convert("RGB")


SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".webp")
"""The suffixes of pictures in FORMATS."""


def pictures_in(folder: Path) -> tuple[list[Path], int]:
    """Return the pictures below a folder, sorted by their paths, and the number of other files.

    Hidden files and folders (.name) do not count, and links to folders are not followed. Raises
    InputError where there is no picture, and for a folder that cannot be read.
    """
    def unreadable(error: OSError) -> None:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from None

    pictures, others = [], 0
    for path, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.startswith("."):
                continue
            if name.lower().endswith(SUFFIXES):
                pictures.append(Path(path, name))
            else:
                others += 1
    if not pictures:
        found = f"; it has {others} other file{'s' if others > 1 else ''}" if others else ""
        raise InputError(f"{folder}: has no pictures ({', '.join(SUFFIXES)}){found}")
    return sorted(pictures), others
