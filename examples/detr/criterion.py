"""The losses of Deformable DETR, RT-DETR, D-FINE, DEIMv2 and LW-DETR, by the rules of their authors' code.

Each class has the weights of one model family as fields. Called with the outputs of a model and the targets, it returns
the weighted losses by name; training minimises their sum. docs/detection_transformers.md lists where the losses of
transformers differ.
"""

import itertools
from dataclasses import dataclass, field
from typing import Protocol

import jax
import jax.numpy as jnp
import optax

from .decoder import Detections, Outputs, Predictions
from .denoising import Denoising
from .losses import (
    Distribution,
    box_losses,
    box_quality,
    distillation,
    fine_grained_localisation,
    iou_aware,
    matchability_aware,
    varifocal,
)
from .matching import Targets, match

# Settings in a config.json of transformers' own losses, and their defaults there. They have no effect on these losses.
UNUSED = {
    **{"class_cost": 1, "bbox_cost": 5, "giou_cost": 2, "bbox_loss_coefficient": 5, "giou_loss_coefficient": 2},
    **{"focal_alpha": 0.25, "matcher_alpha": 0.25, "matcher_gamma": 2.0, "matcher_class_cost": 2.0},
    **{"matcher_bbox_cost": 5.0, "matcher_giou_cost": 2.0, "use_focal_loss": True, "focal_loss_alpha": 0.75},
    **{"focal_loss_gamma": 2.0, "weight_loss_vfl": 1.0, "weight_loss_bbox": 5.0, "weight_loss_giou": 2.0},
    **{"weight_loss_fgl": 0.15, "weight_loss_ddf": 1.5, "weight_loss_mal": 1.0, "mal_alpha": None},
    **{"use_dense_one_to_one": True},
}
UNUSED_OF_LW_DETR = UNUSED | {"class_cost": 2, "class_loss_coefficient": 1, "dice_loss_coefficient": 1}
Losses = dict[str, jax.Array]


class Criterion(Protocol):
    """The losses by name, from the outputs of a model in training."""

    def __call__(self, outputs: Outputs, targets: Targets, denoising: Denoising | None = None) -> Losses: ...


@dataclass(frozen=True)
class DeformableDetrLosses:
    """Focal, L1 and GIoU losses of all layers and of the first stage, each divided by the number of targets.

    classes, l1, giou: their weights.
    """

    classes: float = 2.0
    l1: float = 5.0
    giou: float = 2.0
    alpha: float = 0.25

    def __call__(self, outputs: Outputs, targets: Targets, denoising: Denoising | None = None) -> Losses:
        """The losses by name. The last layer has no suffix, layer i has `_i`, and the first stage has `_enc`."""
        count = _count(targets)
        layers = _sets(outputs.layers)
        suffixes = [*(f"_{index}" for index in range(len(layers.logits) - 1)), ""]
        found = self._losses(layers, targets, count, suffixes)
        if outputs.proposals is not None:
            # The first stage finds objects, whatever their class.
            objects = targets._replace(labels=jnp.minimum(targets.labels, 0))
            found |= self._losses(jax.tree.map(lambda leaf: leaf[None], outputs.proposals), objects, count, ["_enc"])
        return found

    def _losses(self, sets, targets, count, suffixes):
        def of_set(found, assigned):
            own = targets.of(assigned)
            classes = jax.nn.one_hot(own.labels, found.logits.shape[-1], dtype=found.logits.dtype)
            loss = self.classes * optax.sigmoid_focal_loss(found.logits, classes, alpha=self.alpha).sum() / count
            return {"loss_ce": loss} | _box_losses(self, found, own, count)

        return _by_set(of_set, suffixes, sets, match(*sets, targets))


@dataclass(frozen=True)
class RTDetrLosses:
    """Varifocal, L1 and GIoU losses of all layers, of the chosen proposals and of the denoising queries.

    vfl, l1, giou: their weights. Each is divided by the number of targets, or of the queries that should find them.
    """

    vfl: float = 1.0
    l1: float = 5.0
    giou: float = 2.0
    alpha: float = 0.75
    gamma: float = 2.0

    def __call__(self, outputs: Outputs, targets: Targets, denoising: Denoising | None = None) -> Losses:
        """The losses by name. The last layer has no suffix, the other layers and then the proposals have `_aux_i`, and
        the denoising queries have `_dn_i`."""
        count = _count(targets)
        sets = _sets(outputs.layers, outputs.proposals)
        others = len(sets.logits) - 1
        suffixes = [*(f"_aux_{index}" for index in range(others - 1)), "", f"_aux_{others - 1}"]

        def of_set(predicted, assigned):
            return self._losses(predicted, targets.of(assigned), count)

        found = _by_set(of_set, suffixes, sets, match(*sets, targets))
        if denoising is not None and outputs.denoising is not None:
            suffixes = [f"_dn_{index}" for index in range(others)]
            found |= self._denoising_losses(_sets(outputs.denoising), suffixes, targets, denoising)
        return found

    def _denoising_losses(self, sets, suffixes, targets, denoising):
        own, count = targets.of(denoising.targets), _count(targets) * denoising.groups
        return _by_set(lambda predicted: self._losses(predicted, own, count, denoising.present), suffixes, sets)

    def _class_loss(self, found, own, count, present=True):
        quality = box_quality(found.boxes, own)
        loss = varifocal(found.logits, own.labels, quality, self.alpha, self.gamma).sum(-1)
        return {"loss_vfl": self.vfl * jnp.where(present, loss, 0).sum() / count}

    def _losses(self, found, own, count, present=True):
        return self._class_loss(found, own, count, present) | _box_losses(self, found, own, count)


@dataclass(frozen=True)
class DFineLosses(RTDetrLosses):
    """Those of RT-DETR, and the losses of distributions: fine-grained localisation (`fgl`), and distillation (`ddf`)
    from the last layer into the others.

    Losses of boxes and distributions have one assignment for all sets: each query has the target that most sets gave
    it. They are divided by the number of these queries. unites: whether it is so; else there are no losses of
    distributions, and those of boxes have the assignment of their set.
    """

    unites: bool = True
    fgl: float = 0.15
    ddf: float = 1.5
    temperature: float = 5.0
    distribution: Distribution = field(default_factory=Distribution)

    def __call__(self, outputs: Outputs, targets: Targets, denoising: Denoising | None = None) -> Losses:
        """The losses by name. The last layer has no suffix, the others have `_aux_i`, the plain head has `_pre`, the
        proposals have `_enc_0`, and the denoising queries have `_dn_i` and `_dn_pre`."""
        sets = _sets(outputs.layers, outputs.layers.first, outputs.proposals)
        layers = len(outputs.layers.logits)
        suffixes = [*(f"_aux_{index}" for index in range(layers - 1)), "", "_pre", "_enc_0"]
        assigned = match(*sets, targets)
        union = _most_frequent(assigned, targets.labels.shape[1])
        of_union, count, size = targets.of(union), _count(targets), jnp.maximum((union >= 0).sum(), 1)
        shares = _shares(of_union.valid)

        def of_set(predicted, assigned):
            own = targets.of(assigned)
            if not self.unites:
                return self._losses(predicted, own, count)
            return self._class_loss(predicted, own, count) | _box_losses(self, predicted, of_union, size)

        found = _by_set(of_set, suffixes, sets, assigned)
        if self.unites:
            found |= self._distribution_losses(outputs.layers, of_union, size, shares, suffixes)
        if denoising is not None and outputs.denoising is not None:
            own, count = targets.of(denoising.targets), count * denoising.groups
            suffixes = [*(f"_dn_{index}" for index in range(layers)), "_dn_pre"]
            sets = _sets(outputs.denoising, outputs.denoising.first)
            found |= self._denoising_losses(sets, suffixes, targets, denoising)
            if self.unites:
                found |= self._distribution_losses(outputs.denoising, own, count, shares, suffixes, denoising.present)
        return found

    def _distribution_losses(self, predictions, own, count, shares, suffixes, present=True):
        corners, boxes, last = predictions.corners, predictions.boxes, len(predictions.corners) - 1
        taught_quality = jax.nn.sigmoid(predictions.logits[-1]).max(-1)

        def localisation(corners, boxes):
            loss = fine_grained_localisation(corners, boxes, predictions.reference, own, self.distribution)
            return {"loss_fgl": self.fgl * loss.sum() / count}

        def taught(student, boxes):
            quality = jnp.where(own.valid, box_quality(boxes, own), taught_quality)
            loss = distillation(student, corners[-1], quality, self.temperature)
            means = [_mean(loss, kind & present) for kind in (own.valid, ~own.valid)]
            return {"loss_ddf": self.ddf * sum(share * mean for share, mean in zip(shares, means, strict=True))}

        found = _by_set(localisation, suffixes[: last + 1], corners, boxes)
        return found | _by_set(taught, suffixes[:last], corners[:-1], boxes[:-1])


@dataclass(frozen=True)
class DeimLosses(DFineLosses):
    """Those of D-FINE, with the matchability-aware loss in place of the varifocal one. mal: its weight."""

    mal: float = 1.0
    gamma: float = 1.5

    def _class_loss(self, found, own, count, present=True):
        loss = matchability_aware(found.logits, own.labels, box_quality(found.boxes, own), self.gamma).sum(-1)
        return {"loss_mal": self.mal * jnp.where(present, loss, 0).sum() / count}


@dataclass(frozen=True)
class LwDetrLosses:
    """IoU-aware, L1 and GIoU losses of all layers and of the chosen proposals, of LW-DETR and RF-DETR in training.

    classes, l1, giou: their weights. groups: of queries, each of which has an assignment of its own. Losses are divided
    by the number of targets and by that of the groups.
    """

    groups: int = 13
    classes: float = 1.0
    l1: float = 5.0
    giou: float = 2.0
    alpha: float = 0.25

    def __call__(self, outputs: Outputs, targets: Targets, denoising: Denoising | None = None) -> Losses:
        """The losses by name. The last layer has no suffix, layer i has `_i`, and the first stage has `_enc`."""
        count = _count(targets) * self.groups
        sets = _sets(outputs.layers, outputs.proposals)
        suffixes = [*(f"_{index}" for index in range(len(sets.logits) - 2)), "", "_enc"]

        def of_set(found, assigned):
            own = targets.of(assigned)
            loss = iou_aware(found.logits, own.labels, box_quality(found.boxes, own), self.alpha).sum() / count
            return {"loss_ce": self.classes * loss} | _box_losses(self, found, own, count)

        return _by_set(of_set, suffixes, sets, _match_in_groups(sets, targets, self.groups))


def _match_in_groups(sets, targets, groups):
    """As `match`, of each group of queries alone."""

    def divided(leaf):
        count, batch, queries, channels = leaf.shape
        return (
            leaf.reshape(count, batch, groups, -1, channels)
            .swapaxes(1, 2)
            .reshape(-1, batch, queries // groups, channels)
        )

    assigned = match(*jax.tree.map(divided, sets), targets)
    shape = sets.logits.shape[:3]
    return assigned.reshape(shape[0], groups, shape[1], -1).swapaxes(1, 2).reshape(shape)


def _box_losses(weights, found, own, count):
    """The losses of boxes, weighted by `l1` and `giou` of a criterion."""
    l1, giou = box_losses(found.boxes, own)
    return {"loss_bbox": weights.l1 * l1.sum() / count, "loss_giou": weights.giou * giou.sum() / count}


def _sets(predictions: Predictions, *others: Detections) -> Detections:
    """The detections of all layers and others of the same shape, stacked."""
    layers = Detections(predictions.logits, predictions.boxes)
    return jax.tree.map(lambda leaf, *rest: jnp.concatenate([leaf, *(one[None] for one in rest)]), layers, *others)


def _by_set(losses, suffixes, *sets):
    """The losses of each set by their names and its suffix. They are mapped, because repeated ones compile slowly."""
    found = jax.vmap(losses)(*sets)
    pairs = itertools.product(enumerate(suffixes), found.items())
    return {f"{name}{suffix}": values[index] for (index, suffix), (name, values) in pairs}


def _count(targets):
    """The number of targets of the batch, at least 1."""
    return jnp.maximum(targets.valid.sum(), 1)


def _most_frequent(assigned, count):
    """The target that most of the assignments [sets, batch, queries] give to a query, the first of several; or -1."""
    votes = jax.nn.one_hot(assigned, count, dtype=jnp.int32).sum(0)
    return jnp.where(votes.max(-1) > 0, votes.argmax(-1), -1)


def _shares(valid):
    """The weights of queries with and without a target: the square roots of their numbers, divided by the sum."""
    roots = jnp.sqrt(jnp.stack([valid.sum(), (~valid).sum()]))
    return roots / roots.sum()


def _mean(values, chosen):
    return jnp.where(chosen, values, 0).sum() / jnp.maximum(chosen.sum(), 1)
