"""Images from files by Pillow: decoded, cut out and resized; no torch."""

from __future__ import annotations

import io
import math
import warnings

import numpy as np
from PIL import Image, UnidentifiedImageError

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's training pixels, by channel, in [0, 1]."""
AREA = (0.08, 1.0)
"""Share of an image that a random crop keeps (Szegedy et al. 2015, section 6)."""
ASPECT = (3 / 4, 4 / 3)
TRIES = 10
CENTRE = 224 / 256
"""Share of the shorter side that an evaluation keeps."""


class Undecodable(Exception):
    """The bytes are no complete image of a supported format."""


def check(raw: bytes) -> None:
    """Decode an image, a JPEG at an eighth of its size: that reads all of its bytes.

    Raises:
        Undecodable: it is no image, or truncated.
    """
    image = _opened(raw)
    image.draft("RGB", (max(1, image.width // 8), max(1, image.height // 8)))
    _loaded(image)


def random_crop(raw: bytes, side: int, draw: int) -> np.ndarray:
    """Return a random part of an image, resized and perhaps mirrored: [side, side, 3] uint8.

    As torchvision's RandomResizedCrop with its defaults and a flip with probability 1/2.

    Args:
        draw: the sample's random number; everything random follows from it.

    Raises:
        Undecodable: it is no image, or truncated.
    """
    image = _rgb(raw)
    generator = np.random.default_rng(draw)
    box = _box(image.width, image.height, generator)
    found = np.asarray(image.resize((side, side), Image.Resampling.BILINEAR, box=box))
    return found[:, ::-1] if generator.random() < 0.5 else found


def centre_crop(raw: bytes, side: int) -> np.ndarray:
    """Return the middle of an image whose shorter side has side / 0.875 pixels: [side, side, 3] uint8.

    Raises:
        Undecodable: it is no image, or truncated.
    """
    image = _rgb(raw)
    shorter = min(image.width, image.height) * side / round(side / CENTRE)
    left, top = (image.width - shorter) / 2, (image.height - shorter) / 2
    box = (left, top, left + shorter, top + shorter)
    return np.asarray(image.resize((side, side), Image.Resampling.BILINEAR, box=box))


def scaled(pixels: np.ndarray) -> np.ndarray:
    """Return pixels [n, side, side, 3] uint8 as [n, 3, side, side] float32 of mean 0 and deviation 1."""
    scale = 1 / (255 * np.array(STD, np.float32))
    shift = np.array(MEAN, np.float32) / np.array(STD, np.float32)
    found = np.empty((len(pixels), 3, *pixels.shape[1:3]), np.float32)
    for channel in range(3):
        np.multiply(pixels[..., channel], scale[channel], out=found[:, channel])
        found[:, channel] -= shift[channel]
    return found


def _box(width: int, height: int, generator: np.random.Generator) -> tuple[float, float, float, float]:
    """Return (left, top, right, bottom) of a random part; the middle if none of ten fits."""
    area = width * height
    for _ in range(TRIES):
        wanted = area * generator.uniform(*AREA)
        aspect = math.exp(generator.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        wide, high = round(math.sqrt(wanted * aspect)), round(math.sqrt(wanted / aspect))
        if 0 < wide <= width and 0 < high <= height:
            left, top = int(generator.integers(width - wide + 1)), int(generator.integers(height - high + 1))
            return left, top, left + wide, top + high
    wide, high = min(width, round(height * ASPECT[1])), min(height, round(width / ASPECT[0]))
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high


def _rgb(raw: bytes) -> Image.Image:
    image = _opened(raw)
    _loaded(image)
    return image.convert("RGB")


def _opened(raw: bytes) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return Image.open(io.BytesIO(raw))
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombWarning,
            Image.DecompressionBombError) as error:
        raise Undecodable(_said(error)) from error


def _loaded(image: Image.Image) -> None:
    try:
        image.load()
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise Undecodable(_said(error)) from error


def _said(error: BaseException) -> str:
    """Return Pillow's words; those about a file in memory would name an address."""
    return "no image of a known format" if isinstance(error, UnidentifiedImageError) else str(error)
