"""Makes the golden files of DEIMv2: transformers' models with their authors' losses, in float64.

python -m tests.examples.make_golden_deim FOLDER, with torch and transformers; FOLDER has Intellindust-AI-Lab/DEIMv2.
What these round to float32 is computed in float64.
"""

import importlib
import inspect
import json
import pathlib
import sys
import tempfile
import textwrap
import types

import jax
import numpy as np
import torch
import transformers
from safetensors.numpy import load_file
from transformers.models.deimv2 import modeling_deimv2

from examples.detr import names, weights
from examples.detr.denoising import Draws, make_denoising
from examples.detr.matching import Targets
from tests.helpers import detectors

WEIGHTS = {"mal": 1, "bbox": 5, "giou": 2, "fgl": 0.15, "ddf": 1.5}
RATE, BACKBONE_RATE, DECAY, CLIP = 8e-4, 0.5, 1e-4, 0.1
STEPS = 20


def rewrite(owner, name, *changes):
    """Replaces texts in the source of a function of a module or class."""
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in changes:
        assert old in source, (name, old)
        source = source.replace(old, new)
    scope = {}
    exec(source, sys.modules[function.__module__].__dict__, scope)
    setattr(owner, name, scope[name])


def authors(folder):
    """The criterion and the matcher of the authors, without the rest of their package."""
    for name in ("engine", "engine.deim", "engine.core", "engine.misc", "engine.misc.dist_utils"):
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = [str(pathlib.Path(folder, *name.split(".")))]
    sys.modules["engine.core"].register = lambda: lambda cls: cls
    sys.modules["engine.misc.dist_utils"].get_world_size = lambda: 1
    sys.modules["engine.misc.dist_utils"].is_dist_available_and_initialized = lambda: False
    found = [importlib.import_module(f"engine.deim.{name}") for name in ("deim_criterion", "dfine_utils", "matcher")]
    double = (".float()", ".double()")
    rewrite(found[0].DEIMCriterion, "unimodal_distribution_focal_loss", double)
    rewrite(found[1], "translate_gt", double)
    return found[0].DEIMCriterion, found[2].HungarianMatcher


class Deim:
    def __init__(self, config, criterion, matcher):
        self.config = config
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "config.json").write_text(json.dumps(config))
            settings = transformers.AutoConfig.from_pretrained(folder)
            transformers.Deimv2ForObjectDetection(settings).save_pretrained(folder)
            arrays = load_file(pathlib.Path(folder, "model.safetensors"))
            # transformers writes a head that layers share as that of the last one, but reads only that of the first.
            last = config["decoder_layers"] - 1 if config.get("share_bbox_head") else 0
            names_read = {key: key.replace(f"bbox_embed.{last}.", "bbox_embed.0.") for key in arrays}
            self.shapes = {names_read[key]: list(array.shape) for key, array in arrays.items()}
            detectors.write(pathlib.Path(folder), config, self.shapes)
            self.model = transformers.Deimv2ForObjectDetection.from_pretrained(folder).double()
        for name in ("up", "reg_scale"):  # which become trainable when they are read
            getattr(self.model.model.decoder, name).requires_grad_(False)
        parameters = {name: one for name, one in self.model.named_parameters(remove_duplicate=False)}
        self.parameters = {
            name: parameters[name] for name in self.shapes if name in parameters and parameters[name].requires_grad
        }
        assert len({*map(id, self.parameters.values())}) == len({id(p) for p in parameters.values() if p.requires_grad})
        is_lite = config.get("encoder_type") == "lite"
        self.criterion = criterion(
            matcher({"cost_class": 2, "cost_bbox": 5, "cost_giou": 2}, True, 0.25, 2.0),
            {f"loss_{name}": 1 for name in WEIGHTS},
            ["mal", "boxes"] if is_lite else ["mal", "boxes", "local"],
            0.75,
            1.5,
            len(config["id2label"]),
            config["max_num_bins"],
            use_uni_set=not is_lite,
        )

    def predict(self, images):
        outputs = self.model.eval()(images)
        return outputs.logits, outputs.pred_boxes

    def losses(self, images, targets):
        labels = [{"labels": torch.from_numpy(one), "boxes": torch.from_numpy(boxes)} for one, boxes in targets]
        count, meta = 0, None
        if self.config["num_denoising"]:
            boxes, classes = np.full((2, 3, 4), 0.5), np.full((2, 3), -1)
            for image, (own, places) in enumerate(targets):
                classes[image, : len(own)], boxes[image, : len(own)] = own, places
            settings = weights.make_model(self.config).config
            made = make_denoising(Draws(*detectors.draws(self.config)), Targets(boxes, classes), settings)
            count, matched = made.classes.shape[1], np.array(made.targets)
            assert made.present.all()
            positive = [torch.from_numpy(np.flatnonzero(row >= 0)) for row in matched]
            queries = self.config["num_queries"]
            meta = {"dn_positive_idx": positive, "dn_num_group": int(made.groups), "dn_num_split": [count, queries]}
            hidden = torch.zeros(made.hidden.shape, dtype=torch.float64)
            hidden[torch.from_numpy(np.array(made.hidden))] = -torch.inf

            def group(**options):
                classes = options["class_embed"](torch.from_numpy(np.array(made.classes)))
                return classes, torch.from_numpy(np.array(made.boxes)).double(), hidden, meta

            modeling_deimv2.get_contrastive_denoising_training_group = group
        found = self.model.train().model(
            images, labels=[{"class_labels": x["labels"], "boxes": x["boxes"]} for x in labels]
        )
        parts = {"dn": slice(count), "": slice(count, None)}
        logits, boxes = found.intermediate_logits, found.intermediate_reference_points
        corners, reference = found.intermediate_predicted_corners, found.initial_reference_points

        def layers(part):
            where = parts[part]
            one = {"teacher_corners": corners[:, -1, where], "teacher_logits": logits[:, -1, where]}
            return [
                {
                    "pred_logits": logits[:, index + 1, where],
                    "pred_boxes": boxes[:, index + 1, where],
                    "pred_corners": corners[:, index, where],
                    "ref_points": reference[:, index, where],
                    **one,
                }
                for index in range(corners.shape[1])
            ]

        def first(part):
            return {"pred_logits": logits[:, 0, parts[part]], "pred_boxes": boxes[:, 0, parts[part]]}

        *others, last = layers("")
        bins = {"up": self.model.model.decoder.up, "reg_scale": self.model.model.decoder.reg_scale}
        outputs = {key: value for key, value in last.items() if "teacher" not in key} | bins
        outputs |= {"aux_outputs": others, "pre_outputs": first(""), "enc_meta": {"class_agnostic": False}}
        outputs["enc_aux_outputs"] = [{"pred_logits": found.enc_topk_logits, "pred_boxes": found.enc_topk_bboxes}]
        if meta:
            outputs |= {"dn_outputs": layers("dn"), "dn_pre_outputs": first("dn"), "dn_meta": meta}
        losses = self.criterion(outputs, labels)
        return losses, sum(value * WEIGHTS[name.split("_")[1]] for name, value in losses.items())

    def rate(self, name):
        rate = RATE * (BACKBONE_RATE if ".conv_encoder.model." in name else 1)
        is_scale = name.endswith(".weight") and self.parameters[name].ndim == 1
        return rate, 0 if name.endswith(".bias") or is_scale else DECAY


def trained(source, images, targets):
    """The losses of some steps."""
    found, groups = [], []
    for name, one in source.parameters.items():
        rate, decay = source.rate(name)
        groups.append({"params": one, "lr": rate, "weight_decay": decay})
    optimiser = torch.optim.AdamW(groups)
    for _ in range(STEPS):
        optimiser.zero_grad()
        total = source.losses(images, targets)[1]
        total.backward()
        present = [one.grad for one in source.parameters.values() if one.grad is not None]
        factor = min(1, CLIP / torch.nn.utils.get_total_norm(present))  # torch's own adds 1e-6 to the norm
        for gradient in present:
            gradient *= factor
        optimiser.step()
        found.append(total.item())
    return found


def main(folder, *chosen):
    jax.config.update("jax_enable_x64", True)
    torch.set_default_dtype(torch.float64)
    criterion, matcher = authors(folder)
    rewrite(modeling_deimv2.Deimv2RMSNorm, "forward", ("torch.float32", "torch.float64"))
    for name in chosen or [name for name in detectors.CONFIGS if name.startswith("deim")]:
        config = detectors.CONFIGS[name]
        source = Deim(config, criterion, matcher)
        pixels, targets = detectors.images(config)[0], detectors.targets(config)
        images = torch.from_numpy(pixels.transpose(0, 3, 1, 2)).double()
        with torch.no_grad():
            logits, boxes = (one.numpy() for one in source.predict(images))
        losses, total = source.losses(images, targets)
        total.backward()
        zeros = [key for key, one in source.parameters.items() if one.grad is None]
        gradients = {
            key: np.zeros(one.shape) if one.grad is None else one.grad.numpy() for key, one in source.parameters.items()
        }
        measured = [detectors.measured(key, gradient) for key, gradient in gradients.items()]
        np.savez_compressed(
            detectors.GOLDEN / f"{name}.npz",
            logits=logits,
            boxes=boxes,
            shapes=json.dumps(source.shapes),
            made_by=f"transformers {transformers.__version__}, torch {torch.__version__}, DEIMv2 0fff8d4",
            losses=json.dumps({key: value.item() for key, value in losses.items()} | {"total": total.item()}),
            parameters=json.dumps(list(gradients)),
            gradients=np.array(measured),
            trained=trained(source, images, targets),
        )
        print(name, len(source.shapes), logits.shape, logits.std(), boxes.std((0, 1)), zeros, flush=True)
        print({key: round(value.item(), 4) for key, value in losses.items()}, flush=True)
        assert set(names.derived(source.shapes, config)) <= set(source.shapes)


if __name__ == "__main__":
    main(*sys.argv[1:])
