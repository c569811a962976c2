"""Training batches of images with annotations, and what a detector finds in validation images."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar

import jax
import numpy as np

from .batches import ahead
from .coco import Dataset
from .devices import gathered, own_rows, shared
from .photographs import DamagedError
from .precision import Evaluation

SPARE = 16  # images that may take the place of a damaged one
Batch, Example = TypeVar("Batch"), TypeVar("Example")
Chosen = tuple[int, tuple[int, ...]]  # an image, and the seed of its augmentations
ExampleOf = Callable[[int], Chosen]  # from the number of a training example


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How training examples are made.

    objects: the first of an image that are kept, by default all. background: whether images without annotations are
    trained on. mirrors: whether images may be mirrored. workers: threads, or processes. skips_damaged: as of `usable`.
    """

    batch_size: int
    objects: int | None = None
    background: bool = False
    mirrors: bool = True
    workers: int = 2
    processes: bool = False
    skips_damaged: bool = False
    seed: int = 0


def training_batches(
    dataset: Dataset,
    loading: Loading,
    draw: Callable[[ExampleOf], Iterator[tuple[Any, list[Chosen], int]]],
    load: Callable[[Loading, Dataset, Chosen, Any], Example],
    stack: Callable[[list[Example], int], Batch],
) -> Iterator[Batch]:
    """The `own_rows` of training batches, which depend only on the seed and the step.

    draw: from the order of `in_turn` to the size of the images of each batch, as many of them as `batch_size`, and the
    number of the first example that may take the place of a damaged one. load: makes one of this size. stack: makes a
    batch of examples, each of which has so many objects at most. Processes need functions of modules here.
    """
    example_of, rows = in_turn(dataset, loading.seed, loading.background), own_rows(loading.batch_size)

    def job(drawn):
        size, chosen, following = drawn
        spare = range(following, following + SPARE * loading.skips_damaged)
        chosen = [*chosen, *map(example_of, spare)]
        return dataset.part(image for image, _ in chosen), chosen, rows, size

    make = partial(_training_batch, loading, load, stack)
    return without_errors(ahead(make, map(job, draw(example_of)), loading.workers, loading.processes))


def _training_batch(loading, load, stack, job):
    """The rows of a batch of the images and seeds chosen for it, and the errors of images that were left out."""
    dataset, chosen, rows, size = job
    examples, errors = usable(lambda one: load(loading, dataset, one, size), chosen, rows, loading.batch_size)
    most = loading.objects or padded_count(max(dataset.counts))  # the same in all processes
    return stack(examples, most), errors


def in_turn(dataset: Dataset, seed: int, background: bool = False) -> ExampleOf:
    """A function from the number of a training example to its image, and to the seed of its augmentations.

    Each epoch goes through the images that have objects and, if `background`, those without annotations, in an order of
    its own, which follows from the seed.
    """
    images = np.array(dataset.images_with_objects + background * dataset.background_images)

    @lru_cache(2)
    def order(epoch):
        return np.random.default_rng((seed, epoch)).permutation(len(images))

    def example(number):
        epoch, place = divmod(number, len(images))
        return int(images[order(epoch)[place]]), (seed, epoch, place)

    return example


def usable(
    load: Callable[[Chosen], Example], chosen: Sequence[Chosen], rows: Sequence[int], size: int
) -> tuple[list[Example], list[str]]:
    """What `load` makes of the image and the seed in each of these rows, and why some of the images were left out.

    chosen: those of the batch, as many as its size, and then those of which one takes the place of a damaged one.
    Without any, or if all of them are damaged, ImageError is raised.
    """
    examples, errors = [], []
    spare = chosen[size:]
    for row in rows:
        first = row % SPARE
        candidates = [chosen[row], *spare[first:], *spare[:first]]
        for one in candidates:
            try:
                examples.append(load(one))
                break
            except DamagedError as error:
                if one is candidates[-1]:
                    others = f"The {len(spare)} images after it are damaged, too."
                    error.add_note(others if spare else "--skip-damaged leaves it out.")
                    raise
                errors.append(str(error))
    return examples, errors


def without_errors(found: Iterable[tuple[Batch, list[str]]]) -> Iterator[Batch]:
    """The batches. Logs each of the errors beside them once, and at the end how many there were."""
    logger, seen = logging.getLogger(__name__), set()
    try:
        for batch, errors in found:
            for error in errors:
                if error not in seen:
                    logger.warning("%s; it is not trained on", error)
                    seen.add(error)
            yield batch
    finally:
        if seen:
            logger.warning("%d damaged images were not trained on", len(seen))


def padded_count(objects: int) -> int:
    """How many objects batches have that are padded with others: few numbers, for each is a program of its own.

    >>> [padded_count(count) for count in (0, 16, 17, 147)]
    [16, 16, 64, 256]
    """
    count = 16
    while count < objects:
        count *= 4
    return count


def evaluated(
    batches: Iterable[tuple[Sequence[int], Any]],
    find: Callable[[Any], Any],
    results: Callable[[int, Any], list[dict[str, Any]]],
    measure: Callable[[list[dict[str, Any]]], dict[str, float]],
) -> Evaluation:
    """What a detector finds in the images of a data set, which the processes share, and its scores.

    batches: the ids of images, and the images. find: detects in a batch. results: of an image and what was found there,
    in COCO's format. measure: the scores of all results.
    """
    listed = []
    for ids, batch in batches:
        found = jax.device_get(find(shared(batch)))
        for row, image in enumerate(ids):
            listed += results(image, jax.tree.map(lambda part, row=row: part[row], found))
    listed = gathered(listed)
    return Evaluation(listed, measure(listed))
