"""What a command that trains does after it has read its options: it trains, evaluates and writes the results."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from . import curves
from .coco import Dataset, ImageError
from .loop import Run, StartError


def run(
    program: str,
    options: argparse.Namespace,
    dataset: Dataset,
    train: Callable[..., Run],
    variables: Any,
    *,
    kept: Callable[[Any], Any],
    measure: Callable[[Any], dict[str, float]],
    save: Callable[[str, Any], Path],
    settings: dict[str, Any],
    scores: Sequence[str],
) -> Run | None:
    """Runs a training with the options of `training_parser`, or only evaluates the variables, which returns None.

    train: takes the folder of checkpoints, and options of `fit`. kept: from a state to the variables to keep.
    measure: the scores of variables. save: writes variables to a name in the folder OUT, and returns the path.
    settings: what else decides the result. scores: the names of those that are drawn; the first one decides which
    variables are "best".
    """
    if options.evaluate_only:
        print(described(measure(variables)))
        return None
    out, loading = options.out, options.loading

    def evaluate(state, steps, before):
        variables = kept(state)
        found = measure(variables)
        print(f"step {steps}: {described(found)}")
        if all(found[scores[0]] > earlier[scores[0]] for earlier in before.values()):
            save("best", jax.device_get(variables))
        return found

    try:
        found = train(
            out / "checkpoints",
            settings={
                "objects": loading.objects,
                "background": loading.background,
                "mirrors": loading.mirrors,
                "dtype": options.dtype,
                "images": len(dataset.images),
                **settings,
            },
            evaluate=evaluate if options.validation else None,
            devices=jax.devices()[: options.devices],
            log=out / "log.jsonl",
            resume=options.resume,
            overwrite=options.overwrite,
        )
    except (StartError, ImageError) as error:
        raise SystemExit(f"{program}: error: {error}") from error
    path = save("model", jax.device_get(kept(found.state)))
    result = {"recipe": vars(options.recipe), "names": dataset.names, "waiting": found.waiting}
    (out / "results.json").write_text(json.dumps(result | {"scores": found.scores, "history": found.history}))
    curves.draw(out / "curves.png", found, scores)
    print(f"The checkpoint is {path}. The loop waited for data {found.waiting:.0%} of the time.")
    return found


def described(scores: Mapping[str, float]) -> str:
    """Scores in percent.

    >>> described({"AP": 0.4321, "AP50": 1.0})
    'AP 43.2, AP50 100.0'
    """
    return ", ".join(f"{name} {100 * score:.1f}" for name, score in scores.items())
