"""The losses of Deformable DETR, RT-DETR and D-FINE, by the rules of their authors' code.

Each class has the weights of one model family as fields. Called with the outputs of a model and the targets, it returns
the weighted losses by name; training minimises their sum. docs/detection_transformers.md lists where the losses of
transformers differ.
"""

from dataclasses import dataclass, field
from typing import Protocol

import jax
import jax.numpy as jnp
import optax

from .decoder import Detections, Outputs, Predictions
from .denoising import Denoising
from .distributions import Distribution, distillation, fine_grained_localisation
from .losses import box_losses, box_quality, varifocal
from .matching import Costs, Targets, match

# Settings in a config.json of transformers' own losses, and their defaults there. They have no effect on these losses.
UNUSED = {
    **{"class_cost": 1, "bbox_cost": 5, "giou_cost": 2, "bbox_loss_coefficient": 5, "giou_loss_coefficient": 2},
    **{"focal_alpha": 0.25, "matcher_alpha": 0.25, "matcher_gamma": 2.0, "matcher_class_cost": 2.0},
    **{"matcher_bbox_cost": 5.0, "matcher_giou_cost": 2.0, "use_focal_loss": True, "focal_loss_alpha": 0.75},
    **{"focal_loss_gamma": 2.0, "weight_loss_vfl": 1.0, "weight_loss_bbox": 5.0, "weight_loss_giou": 2.0},
    **{"weight_loss_fgl": 0.15, "weight_loss_ddf": 1.5},
}
Losses = dict[str, jax.Array]
COSTS = Costs()


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
    costs: Costs = COSTS

    def __call__(self, outputs: Outputs, targets: Targets, denoising: Denoising | None = None) -> Losses:
        """The losses by name. The last layer has no suffix, layer i has `_i`, and the first stage has `_enc`."""
        count = _count(targets)
        assigned = match(outputs.layers.logits, outputs.layers.boxes, targets, self.costs)
        last = len(assigned) - 1
        found: Losses = {}
        for index, of_layer in enumerate(assigned):
            suffix = "" if index == last else f"_{index}"
            found |= self._losses(_layer(outputs.layers, index), targets.of(of_layer), count, suffix)
        if outputs.proposals is not None:
            # The first stage finds objects, whatever their class.
            objects = targets._replace(labels=jnp.minimum(targets.labels, 0))
            [of_pixels] = match(outputs.proposals.logits[None], outputs.proposals.boxes[None], objects, self.costs)
            found |= self._losses(outputs.proposals, objects.of(of_pixels), count, "_enc")
        return found

    def _losses(self, found, own, count, suffix):
        classes = jax.nn.one_hot(own.labels, found.logits.shape[-1], dtype=found.logits.dtype)
        loss = self.classes * optax.sigmoid_focal_loss(found.logits, classes, alpha=self.alpha).sum() / count
        return {f"loss_ce{suffix}": loss} | _box_losses(self, found, own, count, suffix)


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
    costs: Costs = COSTS

    def __call__(self, outputs: Outputs, targets: Targets, denoising: Denoising | None = None) -> Losses:
        """The losses by name. The last layer has no suffix, the other layers and then the proposals have `_aux_i`, and
        the denoising queries have `_dn_i`."""
        count = _count(targets)
        sets = [*_layers(outputs.layers), outputs.proposals]
        last = len(sets) - 2
        found: Losses = {}
        for index, (predicted, of_set) in enumerate(zip(sets, _match_all(sets, targets, self.costs), strict=True)):
            suffix = "" if index == last else f"_aux_{index - (index > last)}"
            found |= self._losses(predicted, targets.of(of_set), count, suffix)
        if denoising is not None and outputs.denoising is not None:
            own, count = targets.of(denoising.targets), _count(targets) * denoising.groups
            for index, predicted in enumerate(_layers(outputs.denoising)):
                found |= self._losses(predicted, own, count, f"_dn_{index}", denoising.present)
        return found

    def _class_loss(self, found, own, count, suffix, present=True):
        quality = box_quality(found.boxes, own)
        loss = varifocal(found.logits, own.labels, quality, self.alpha, self.gamma).sum(-1)
        return {f"loss_vfl{suffix}": self.vfl * jnp.where(present, loss, 0).sum() / count}

    def _losses(self, found, own, count, suffix, present=True):
        of_classes = self._class_loss(found, own, count, suffix, present)
        return of_classes | _box_losses(self, found, own, count, suffix)


@dataclass(frozen=True)
class DFineLosses(RTDetrLosses):
    """Those of RT-DETR, and the losses of distributions: fine-grained localisation (`fgl`), and distillation (`ddf`)
    from the last layer into the others.

    Losses of boxes and distributions have one assignment for all sets: each query has the target that most sets gave
    it. They are divided by the number of these queries.
    """

    fgl: float = 0.15
    ddf: float = 1.5
    temperature: float = 5.0
    distribution: Distribution = field(default_factory=Distribution)

    def __call__(self, outputs: Outputs, targets: Targets, denoising: Denoising | None = None) -> Losses:
        """The losses by name. The last layer has no suffix, the others have `_aux_i`, the plain head has `_pre`, the
        proposals have `_enc_0`, and the denoising queries have `_dn_i` and `_dn_pre`."""
        layers = _layers(outputs.layers)
        sets = [*layers, outputs.layers.first, outputs.proposals]
        suffixes = [*(f"_aux_{index}" for index in range(len(layers) - 1)), "", "_pre", "_enc_0"]
        assigned = _match_all(sets, targets, self.costs)
        union = _most_frequent(assigned, targets.labels.shape[1])
        of_union, count, size = targets.of(union), _count(targets), jnp.maximum((union >= 0).sum(), 1)
        shares = _shares(of_union.valid)
        found: Losses = {}
        for predicted, of_set, suffix in zip(sets, assigned, suffixes, strict=True):
            found |= self._class_loss(predicted, targets.of(of_set), count, suffix)
            found |= _box_losses(self, predicted, of_union, size, suffix)
        found |= self._distribution_losses(outputs.layers, of_union, size, shares, suffixes)
        if denoising is not None and outputs.denoising is not None:
            own, count = targets.of(denoising.targets), count * denoising.groups
            suffixes = [*(f"_dn_{index}" for index in range(len(layers))), "_dn_pre"]
            for predicted, suffix in zip([*_layers(outputs.denoising), outputs.denoising.first], suffixes, strict=True):
                found |= self._losses(predicted, own, count, suffix, denoising.present)
            found |= self._distribution_losses(outputs.denoising, own, count, shares, suffixes, denoising.present)
        return found

    def _distribution_losses(self, predictions, own, count, shares, suffixes, present=True):
        found: Losses = {}
        teacher, last = predictions.corners[-1], len(predictions.corners) - 1
        taught_quality = jax.nn.sigmoid(predictions.logits[-1]).max(-1)
        for index, (corners, boxes) in enumerate(zip(predictions.corners, predictions.boxes, strict=True)):
            suffix = suffixes[index]
            local = fine_grained_localisation(corners, boxes, predictions.reference, own, self.distribution)
            found[f"loss_fgl{suffix}"] = self.fgl * local.sum() / count
            if index < last:
                quality = jnp.where(own.valid, box_quality(boxes, own), taught_quality)
                loss = distillation(corners, teacher, quality, self.temperature)
                means = [_mean(loss, kind & present) for kind in (own.valid, ~own.valid)]
                found[f"loss_ddf{suffix}"] = self.ddf * sum(
                    share * mean for share, mean in zip(shares, means, strict=True)
                )
        return found


def _box_losses(weights, found, own, count, suffix):
    """The losses of boxes, weighted by `l1` and `giou` of a criterion."""
    l1, giou = box_losses(found.boxes, own)
    return {
        f"loss_bbox{suffix}": weights.l1 * l1.sum() / count,
        f"loss_giou{suffix}": weights.giou * giou.sum() / count,
    }


def _layer(predictions: Predictions, index: int) -> Detections:
    return Detections(predictions.logits[index], predictions.boxes[index])


def _layers(predictions: Predictions) -> list[Detections]:
    return [_layer(predictions, index) for index in range(len(predictions.logits))]


def _count(targets):
    """The number of targets of the batch, at least 1."""
    return jnp.maximum(targets.valid.sum(), 1)


def _match_all(sets, targets, costs):
    """`match` of detections of equal shapes."""
    return match(*(jnp.stack(parts) for parts in zip(*sets, strict=True)), targets, costs)


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
