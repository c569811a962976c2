"""Classes, which are matched by their names: those of a checkpoint with the categories of annotations."""

import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from .files import listed

# Names of one class in COCO's file, in Pascal VOC and in published checkpoints, without spaces and in lower case.
SYNONYMS = (
    ("airplane", "aeroplane"),
    ("cellphone", "mobilephone"),
    ("couch", "sofa"),
    ("donut", "doughnut"),
    ("hairdrier", "hairdryer"),
    ("motorcycle", "motorbike"),
    ("tv", "tvmonitor", "television"),
)
SAME = {name: names[0] for names in SYNONYMS for name in names}


def places(names: Sequence[str], classes: Sequence[str]) -> list[int | None]:
    """The place in `classes` of each name, None for one that is not there.

    Names with the same `letters` and synonyms are the same class, unless they are classes of their own.

    >>> places(["cat", "Dining-Table", "sofa", "lamp"], ["diningtable", "couch", "cat"])
    [2, 0, 1, None]
    """
    found: dict[int, int] = {}
    for spelling in (str, letters, kind):
        known: dict[str, int | None] = {}
        for place, name in enumerate(classes):
            if place not in found.values():
                known[spelling(name)] = None if spelling(name) in known else place
        for index, name in enumerate(names):
            if index not in found and (place := known.pop(spelling(name), None)) is not None:
                found[index] = place
    return [found.get(index) for index in range(len(names))]


def kind(name: str) -> str:
    """What names of one class have in common: their letters, or those of a synonym."""
    return SAME.get(letters(name), letters(name))


def with_rows(
    new: jax.Array, old: jax.Array, places: Sequence[int | None], per_class: int = 1, axis: int = -1
) -> np.ndarray:
    """New weights, in which each class that has a place among the old classes has its old ones.

    axis: has `per_class` entries for each class. It may end with others, such as of the background, which stay old
    unless all classes are new.

    >>> with_rows(np.zeros(4), np.array([1, 2, 9]), [None, 0, 1]).tolist()
    [0.0, 1.0, 2.0, 9.0]
    """
    found, kept = (np.moveaxis(np.array(array), axis, 0) for array in (new, old))
    for index, place in enumerate(places):
        if place is not None:
            found[index * per_class : (index + 1) * per_class] = kept[place * per_class : (place + 1) * per_class]
    rest = len(found) - len(places) * per_class
    if any(place is not None for place in places):
        found[len(found) - rest :] = kept[len(kept) - rest :]
    return np.moveaxis(found, 0, axis)


def adapted(
    variables: Any,
    initialise: Callable[[jax.Array], Any],
    per_class: Callable[[Any], tuple[int, int] | None],
    places: Sequence[int | None],
    key: jax.Array,
) -> Any:
    """The variables of a model for other classes, by `with_rows` where they depend on the classes, else the old ones.

    initialise: makes those of the new model. per_class: from a path of jax.tree_util to the last arguments of
    `with_rows`, or None for what does not depend on the classes, for which nothing is compiled.
    """

    @jax.jit
    def fresh(key):
        return jax.tree_util.tree_map_with_path(lambda path, leaf: leaf if per_class(path) else None, initialise(key))

    def chosen(path, old, new):
        return old if new is None else with_rows(new, old, places, *per_class(path))

    return jax.tree_util.tree_map_with_path(chosen, variables, fresh(key))


def described(names: Sequence[str], classes: Sequence[str]) -> str:
    """A table of the class of a checkpoint that each name has, unless all have the same name, and a line with the
    classes of the checkpoint that no name has, if there are any.

    >>> print(described(["sofa", "lamp"], ["couch", "cat"]), end="")
    Classes, and those of the checkpoint whose weights they have:
      sofa                           couch
      lamp                           none, starts anew
    Classes of the checkpoint that are not kept: 'cat'
    """
    found = places(names, classes)
    matched = [None if place is None else classes[place] for place in found]
    lines = []
    if matched != list(names):
        lines.append("Classes, and those of the checkpoint whose weights they have:")
        lines += [f"  {name:30} {match or 'none, starts anew'}" for name, match in zip(names, matched, strict=True)]
    dropped = [name for place, name in enumerate(classes) if place not in found]
    if dropped:
        lines.append(f"Classes of the checkpoint that are not kept: {listed(dropped, most=10)}")
    return "".join(f"{line}\n" for line in lines)


def letters(name: str) -> str:
    """A name without spaces, hyphens, underscores and capitals, and with the usual forms of characters."""
    composed = unicodedata.normalize("NFKC", name)
    return "".join(character for character in composed.casefold() if character not in " -_")
