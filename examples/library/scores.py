"""Scores of evaluations: printed, and the best model kept."""

from collections.abc import Callable, Mapping
from typing import Any

from .loop import Scores


def described(scores: Mapping[str, float]) -> str:
    """Scores in percent.

    >>> described({"AP": 0.4321, "AP50": 1.0})
    'AP 43.2, AP50 100.0'
    """
    return ", ".join(f"{name} {100 * score:.1f}" for name, score in scores.items())


def evaluator(
    measure: Callable[[Any], dict[str, float]], save: Callable[[Any], None], decisive: str
) -> Callable[[Any, int, Scores], dict[str, float]]:
    """A function of variables, the number of their steps and all earlier scores, which returns what `measure` returns.

    It prints the scores, and saves the variables if the decisive one is the best so far.
    """

    def evaluate(variables, steps, before):
        scores = measure(variables)
        print(f"step {steps}: {described(scores)}")
        if all(scores[decisive] > one[decisive] for one in before.values()):
            save(variables)
        return scores

    return evaluate
