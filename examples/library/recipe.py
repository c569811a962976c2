"""The recipe of a training: the numbers that decide its result, each with what its option says."""

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal

Group = Literal["default", "offset", "backbone"]  # of the parameters that are trained
FREELY, IF_ASKED = "freely", "if asked"  # how a run that goes on may change a number; the latter: only by its option


def _number(default: Any, what: str, low: float = 0, high: float = math.inf, changes: str = "") -> Any:
    """A field with an option, whose help text is `what`; low, high: its range."""
    return field(default=default, metadata={"help": what, "range": (low, high), "changes": changes})


@dataclass(frozen=True)
class Recipe:
    """How a model is trained. It is flat, because each field is an option of commands, and a setting of checkpoints.

    The rate grows linearly from the fraction `warmup_from` of its peak, by default 1 / warmup, then stays, and is a
    tenth of itself from each of the fractions `decays` of all steps on; with `cosine` it falls along one to 0.
    reference_batch: the peak is that of a batch of so many images, and in proportion to the batch; 0 for any batch.
    rule: AdamW, or SGD with a momentum of 0.9. norm_decay: whether normalisations and biases have weight decay, too.
    factors: by which the rates of some parameters are multiplied, by how their names begin. undecayed: a regular
    expression of the names of further parameters without weight decay.
    frozen: how the names of constant parameters begin, such as "backbone/layer1_". position_names: further modules that
    count as offsets. ema: the decay of the moving average of the variables, which grows from 0 with `ema_warmup`.
    """

    steps: int = _number(1000, "steps of the optimiser", 1, changes=FREELY)
    batch_size: int = _number(2, "images in a step", 1)
    accumulate: int = _number(1, "parts of a batch, which are processed one after another", 1, changes=FREELY)
    learning_rate: float = _number(1e-4, "peak learning rate", changes=IF_ASKED)
    reference_batch: int = _number(0, "images in a step that the learning rate is for, 0 for any")
    offset_rate: float = _number(
        1.0, "learning rate of what predicts offsets and masks, as a fraction", changes=IF_ASKED
    )
    backbone_rate: float = _number(1.0, "learning rate of the backbone, as a fraction", changes=IF_ASKED)
    warmup: int = _number(500, "steps until the full learning rate, by default at most a fifth of all", changes=FREELY)
    warmup_from: float | None = None
    decays: tuple[float, ...] = _number((), "fractions of the steps from which on the rate is a tenth of itself", 0, 1)
    cosine: bool = False
    rule: Literal["adamw", "sgd"] = "adamw"
    weight_decay: float = _number(1e-4, "weight decay")
    norm_decay: bool = False
    undecayed: str | None = None
    factors: tuple[tuple[str, float], ...] = ()
    clip_norm: float = _number(1.0, "the largest norm of all gradients together", 1e-9, changes=IF_ASKED)
    frozen: tuple[str, ...] = ()
    position_names: tuple[str, ...] = ()
    ema: float = _number(0.0, "decay of the moving average of the weights, 0 for none", 0, 1 - 1e-9)
    ema_warmup: int = _number(2000, "steps of its warm-up")
    seed: int = _number(0, "of the data and all random choices", 0, 2**32 - 1)
    checkpoint_every: int = _number(500, "steps", 1, changes=FREELY)
    evaluate_every: int = _number(1000, "steps", 1, changes=FREELY)

    @property
    def group_rates(self) -> dict[Group, float]:
        """The peak learning rate of each group of parameters."""
        peak = self.learning_rate * (self.batch_size / self.reference_batch if self.reference_batch else 1)
        return {"default": peak, "offset": peak * self.offset_rate, "backbone": peak * self.backbone_rate}


CHANGEABLE, CHANGEABLE_IF_ASKED = (
    [one.name for one in fields(Recipe) if one.metadata.get("changes") == kind] for kind in (FREELY, IF_ASKED)
)
