"""Reading of photos, and their preprocessing for a network.

Pillow is imported only when the first photo is read: this module is imported for the metadata of
every network, but not every network processes photos.
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

from gossamer.errors import InputError, check_choice, first_line, similar_file

if TYPE_CHECKING:
    from PIL import Image


CHANNEL_ORDERS = ("rgb", "bgr", "grey")
ROUNDINGS = ("none", "signed8", "sign")
LONGEST = 16384
"""Maximum side length in pixels to which a photo may be scaled."""
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM")
"""The supported formats of photos, by Pillow's names."""
MOST_PIXELS = 2**26
"""Maximum number of pixels of a photo.

Several copies of a photo are in memory at once, with 4 bytes per pixel.
"""


@dataclass(frozen=True)
class Preprocessing:
    """The steps that convert a photo to a network's input.

    A photo is scaled and cropped. Its values v, from 0 to 255, become (v * scale - mean) / std and
    are optionally rounded.

    size: (height, width) of the result; None does not crop.
    resize: length to which the short side is scaled before the centre is cropped to `size`. None
    scales the whole photo to `size`.
    channels: "rgb", "bgr" or "grey".
    scale: factor of the photo's values.
    mean, std: one number for all channels, or one per channel in the order of `channels`.
    rounding: "signed8" rounds down to multiples of 1/128 in [-1, 127/128]; "sign" returns -1 for
    negative values and 1 for others; "none" does not round.
    """

    size: tuple[int, int] | None = None
    resize: int | None = None
    channels: str = "rgb"
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    rounding: str = "none"

    def __post_init__(self) -> None:
        check_choice("channel order", self.channels, CHANNEL_ORDERS)
        check_choice("rounding", self.rounding, ROUNDINGS)
        allowed = (1,) if self.channels == "grey" else (1, 3)
        for option, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in allowed:
                raise InputError(f"{option} has {len(values)} numbers, expected "
                                 f"{' or '.join(map(str, allowed))} for {self.channels} images")
            if not all(map(math.isfinite, values)):
                raise InputError(f"{option} {', '.join(map(str, values))}: expected finite "
                                 "numbers")
        if not math.isfinite(self.scale):
            raise InputError(f"scale {self.scale}: expected a finite number")
        if 0.0 in self.std:
            raise InputError("std contains 0; expected nonzero numbers")
        resize = () if self.resize is None else (self.resize,)
        size = "x".join(map(str, self.size or ()))
        if any(not 1 <= length <= LONGEST for length in (*(self.size or ()), *resize)):
            raise InputError(f"{f'size {size}' if size else ''}{', ' if size and resize else ''}"
                             f"{f'resize {self.resize}' if resize else ''}: expected lengths "
                             f"from 1 to {LONGEST}")
        if self.size and self.resize and self.resize < max(self.size):
            raise InputError(f"resize {self.resize} is too small to crop size {size}")

    def fitted(self, shape: Sequence[int | None]) -> Preprocessing:
        """Return this preprocessing with the size that an input shape requires.

        The size is unchanged if dimensions of the shape are dynamic. `resize` is scaled by the same
        factor as the size.

        shape: (N, C, H, W), or (N, C * H * W) for a network with flattened photos. A flattened
        photo keeps the current size if it has C * H * W values; otherwise it becomes square.
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
        """Return the network input of one photo: float32 (channels, height, width).

        image: the photo from open_image() or load_image(), uint8 (height, width, 3).
        """
        return self.normalised(np.asarray(self._sized(image), dtype=np.float32))

    def pixels(self, image: np.ndarray | Image.Image) -> np.ndarray:
        """Return one photo scaled and cropped but not normalised.

        The result is uint8 (height, width, channels).

        image: the photo from open_image() or load_image().
        """
        values = np.asarray(self._sized(image))
        values = values[:, :, None] if values.ndim == 2 else values
        return np.ascontiguousarray(values[:, :, ::-1] if self.channels == "bgr" else values)

    def normalised(self, values: np.ndarray) -> np.ndarray:
        """Return the network input of a photo that has the right size.

        The result is float32 (channels, height, width).

        values: the photo's values from 0 to 255 as float32: (height, width, 3) in RGB, or (height,
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
        """Return the network input of several photos: (N, channels, height, width).

        Raises InputError if the photos have different sizes.
        """
        return _stacked([self(image) for image in images])

    def pixel_batch(self, images: Sequence[np.ndarray | Image.Image]) -> np.ndarray:
        """Return the results of pixels() for several photos: (N, height, width, channels).

        Raises InputError if the photos have different sizes.
        """
        return _stacked([self.pixels(image) for image in images])

    def _sized(self, photo: np.ndarray | Image.Image) -> Image.Image:
        """Return the photo scaled and cropped, in grey if `channels` is "grey"."""
        from PIL import Image

        image = Image.fromarray(photo) if isinstance(photo, np.ndarray) else photo
        if self.channels == "grey":
            image = image.convert("L")
        if self.resize is not None:
            short = min(image.size)
            width, height = (self.resize * length // short for length in image.size)
            if max(width, height) > LONGEST:
                raise InputError(f"a photo of {image.height}x{image.width} is too narrow to scale "
                                 f"its short side to {self.resize}: the long side would exceed "
                                 f"{LONGEST}")
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
        raise InputError("images of different sizes cannot form a batch; set --size")
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
    """Read a photo as a uint8 array (height, width, 3) in RGB.

    Raises the same errors as open_image().
    """
    return np.asarray(open_image(path))


def open_image(path: str | Path) -> Image.Image:
    """Read a photo as an upright Pillow image in RGB.

    The photo is rotated by its EXIF orientation. Grey and palette images are converted to RGB,
    transparent pixels are blended with white, and 16-bit values are scaled to 8 bits. Unlike an
    array, a Pillow image can be scaled without first being copied.

    Raises InputError if the file is missing, is not an image of FORMATS, is damaged, or has more
    than MOST_PIXELS pixels.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder, expected an image file")
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is not a regular file")
    return _read(path, str(path))


class ImageSizeError(InputError):
    """A photo with too many pixels or too long a side."""


def decode_image(data: bytes, name: str = "the picture", *,
                 most_pixels: int | None = None, longest: int | None = None) -> Image.Image:
    """Read a photo from the bytes of a file; see open_image().

    name: the photo's name in messages.
    most_pixels: maximum number of pixels of the photo (default: MOST_PIXELS).
    longest: maximum side length in pixels (default: unlimited).

    Raises InputError if the bytes are not a readable photo, and ImageSizeError if the photo is too
    large.
    """
    return _read(io.BytesIO(data), name, most_pixels, longest)


def _read(source: Path | io.BytesIO, name: str, most_pixels: int | None = None,
          longest: int | None = None) -> Image.Image:
    from PIL import Image, UnidentifiedImageError

    most_pixels = most_pixels or MOST_PIXELS
    try:
        with warnings.catch_warnings():
            # Pillow warns about damage that it can ignore
            warnings.simplefilter("ignore")
            return _opened(source, name, most_pixels, longest)
    except FileNotFoundError:
        raise InputError(f"{name}: no such image file{similar_file(name)}") from None
    except UnidentifiedImageError:
        hint = "; pass arrays with --input" if name.endswith((".npy", ".npz")) else ""
        raise InputError(f"{name}: not a readable image; expected "
                         f"{', '.join(FORMATS)}{hint}") from None
    except InputError:
        raise
    except Image.DecompressionBombError:
        raise ImageSizeError(f"{name}: too many pixels; scale it down to {most_pixels} or fewer "
                             "first") from None
    except Exception as error:
        # Pillow's decoders raise many kinds of errors for damaged files
        raise InputError(f"{name}: damaged image ({first_line(error)})") from None


def _opened(source: Path | io.BytesIO, name: str, most_pixels: int,
            longest: int | None) -> Image.Image:
    from PIL import Image, ImageOps

    # without a list of formats, Pillow tries all formats, and for some of them runs other programs
    with Image.open(source, formats=FORMATS) as file:
        width, height = file.size
        if width * height > most_pixels:
            raise ImageSizeError(f"{name}: is {width} pixels wide and {height} high, too many "
                                 f"pixels; scale it down to {most_pixels} or fewer first")
        if longest is not None and max(width, height) > longest:
            raise ImageSizeError(f"{name}: is {width} pixels wide and {height} high; scale it down "
                                 f"to sides of {longest} or shorter first")
        # in place, so that upright photos are not copied
        ImageOps.exif_transpose(file, in_place=True)
        file.load()
    return _to_rgb(file)


def _to_rgb(image: Image.Image) -> Image.Image:
    from PIL import Image

    if image.mode.startswith("I"):
        # 65535 / 257 = 255: white stays white
        levels = np.asarray(image).astype(np.uint32)
        image = Image.fromarray(((levels + 128) // 257).clip(max=255).astype(np.uint8))
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.new("RGB", rgba.size, (255, 255, 255))
        image.paste(rgba, mask=rgba)
    return image if image.mode == "RGB" else image.convert("RGB")


SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".webp")
"""The file suffixes of FORMATS."""


def pictures_in(folder: Path) -> tuple[list[Path], int]:
    """Return the pictures in a folder tree, and the number of other files.

    The pictures are sorted by path. Hidden files and folders (.name) are ignored, and links to
    folders are not followed. Raises InputError if there is no picture or a folder cannot be read.
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
        found = f", but {others} other file{'s' if others > 1 else ''}" if others else ""
        raise InputError(f"{folder}: contains no images ({', '.join(SUFFIXES)}){found}")
    return sorted(pictures), others
