"""The normalisation of images that the settings of a checkpoint ask for."""

import logging
from collections.abc import Sequence
from pathlib import Path

LEAST = 1 / 200  # of white; no set of photographs is so dark


def check_unit(path: Path, name: str, mean: Sequence[float], white: float) -> None:
    """Logs a setting of a file that is no mean of images from 0 to `white`, as 0.485 is none if white is 255."""
    if any(mean) and not LEAST * white <= max(mean) <= white:
        message = "%s: %s is %s, but images are from 0 to %g before it is subtracted. It seems to have another unit."
        logging.getLogger(__name__).warning(message, path, name, list(mean), white)
