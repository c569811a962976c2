"""Makes the golden files of LW-DETR with transformers, and those of RF-DETR with its authors' package, in float64.

python -m tests.examples.make_golden_lw_detr, with torch, transformers and rfdetr. What they round to float32, such as
wavelengths and proposals, is computed in float64.
"""

import importlib.metadata
import inspect
import json
import pathlib
import sys
import tempfile
import textwrap

import numpy as np
import torch
import transformers
from rfdetr.models import criterion, lwdetr, matcher, transformer
from rfdetr.models.backbone import Joiner, dinov2, dinov2_with_windowed_attn
from rfdetr.models.backbone.backbone import Backbone
from rfdetr.models.position_encoding import PositionEmbeddingSine
from rfdetr.utilities.tensors import NestedTensor
from safetensors.numpy import load_file
from transformers.models.lw_detr import modeling_lw_detr

from tests.helpers import detectors

WEIGHTS = {"ce": 1, "bbox": 5, "giou": 2}
RATE, ENCODER_RATE, LAYER_DECAY, PART_DECAY, DECAY, CLIP = 1e-4, 1.5e-4, 0.8, 0.7, 1e-4, 0.1
STEPS = 20


def rewrite(owner, name, *changes):
    """Replaces texts in the source of a function of a module or class."""
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    source = "\n".join(line for line in source.split("\n") if not line.startswith("@"))
    for old, new in changes:
        assert old in source, (name, old)
        source = source.replace(old, new)
    module = sys.modules[function.__module__]
    scope = {"cast": lambda _, value: value}
    exec("from __future__ import annotations\n" + source, module.__dict__ | scope, scope)
    setattr(owner, name, scope[name])


def compute_in_float64():
    float64 = ("torch.float32", "torch.float64")
    rewrite(modeling_lw_detr, "encode_sinusoidal_position_embedding", float64)
    # As the authors, who do not leave out proposals near the border.
    all_proposals = ('group_enc_outputs_class.masked_fill(invalid_mask, float("-inf"))', "group_enc_outputs_class")
    rewrite(modeling_lw_detr.LwDetrModel, "forward", all_proposals)
    rewrite(transformer, "gen_encoder_output_proposals", float64, (".float()", ".double()"))
    embeddings = dinov2_with_windowed_attn.WindowedDinov2WithRegistersEmbeddings
    rewrite(embeddings, "interpolate_pos_encoding", float64)


class LwDetr:
    """That of transformers."""

    made_by = f"transformers {transformers.__version__}, torch {torch.__version__}"

    def __init__(self, config):
        self.config = config
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "config.json").write_text(json.dumps(config))
            settings = transformers.AutoConfig.from_pretrained(folder)
            transformers.LwDetrForObjectDetection(settings).save_pretrained(folder)
            arrays = load_file(pathlib.Path(folder, "model.safetensors"))
            self.shapes = {key: list(array.shape) for key, array in arrays.items()}
            detectors.write(pathlib.Path(folder), config, self.shapes)
            self.model = transformers.LwDetrForObjectDetection.from_pretrained(folder).double()
        kinds = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}

        def in_memory(name):
            for kind, own in kinds.items():
                name = name.replace(f"attention.attention.{kind}.", f"attention.{own}.")
            return name.replace("attention.output.", "attention.o_proj.")

        parameters = dict(self.model.named_parameters())
        self.parameters = {name: parameters.get(in_memory(name)) for name in self.shapes}
        self.parameters = {name: one for name, one in self.parameters.items() if one is not None}
        assert len(self.parameters) == len(parameters)

    def predict(self, images):
        outputs = self.model.eval()(images)
        return outputs.logits, outputs.pred_boxes

    def losses(self, images, targets):
        labels = [{"class_labels": torch.from_numpy(one), "boxes": torch.from_numpy(boxes)} for one, boxes in targets]
        found = self.model.train()(images, labels=labels)
        return found.loss_dict, found.loss

    def rate(self, name):
        num_layers = self.config["backbone_config"]["num_hidden_layers"]
        if ".backbone.backbone." not in name:
            return RATE * (PART_DECAY if ".decoder." in name else 1), DECAY
        layer = 0 if ".embeddings." in name else int(name.split(".layer.")[1].split(".")[0]) + 1
        kept = any(part in name for part in ("gamma", "position_embeddings", "bias", "norm"))
        rate = ENCODER_RATE * PART_DECAY**2 * LAYER_DECAY ** (num_layers + 1 - layer)
        return rate, 0 if kept else DECAY


class RfDetr:
    """That of its authors."""

    made_by = f"rfdetr {importlib.metadata.version('rfdetr')}, torch {torch.__version__}"

    def __init__(self, config):
        self.config, backbone = config, config["backbone_config"]
        width, grid = backbone["hidden_size"], backbone["image_size"] // backbone["patch_size"]
        dinov2.size_to_width["tiny"] = width
        names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "mlp_ratio", "layer_norm_eps", "image_size")
        settings = {name: backbone[name] for name in names if name in backbone} | {"patch_size": backbone["patch_size"]}
        dinov2.get_config = lambda size, registers: dict(settings)
        self.indices, d_model, groups = backbone["out_indices"], config["d_model"], config["group_detr"]
        features = Backbone(
            "dinov2_windowed_tiny",
            out_channels=d_model,
            out_feature_indexes=self.indices,
            projector_scale=["P4"],
            layer_norm=True,
            load_dinov2_weights=False,
            patch_size=backbone["patch_size"],
            num_windows=backbone["num_windows"],
            positional_encoding_size=grid,
        )
        layers = transformer.Transformer(
            d_model,
            config["decoder_self_attention_heads"],
            config["decoder_cross_attention_heads"],
            config["num_queries"],
            config["decoder_layers"],
            config["decoder_ffn_dim"],
            activation=config.get("decoder_activation_function", "relu"),
            return_intermediate_dec=True,
            group_detr=groups,
            two_stage=True,
            num_feature_levels=1,
            dec_n_points=config["decoder_n_points"],
            lite_refpoint_refine=True,
            bbox_reparam=True,
        )
        classes, positions = len(config["id2label"]), PositionEmbeddingSine(d_model // 2, normalize=True)
        options = {"group_detr": groups, "two_stage": True, "lite_refpoint_refine": True, "bbox_reparam": True}
        queries = config["num_queries"]
        self.model = lwdetr.LWDETR(Joiner(features, positions), layers, None, classes, queries, True, **options)
        state = self.model.state_dict()
        self.shapes = {name: list(one.shape) for name, one in state.items() if name != "_kp_active_mask"}
        arrays = detectors.state(config, self.shapes)
        unexpected = self.model.load_state_dict({k: torch.from_numpy(v) for k, v in arrays.items()}, strict=False)
        assert unexpected.missing_keys == ["_kp_active_mask"], unexpected
        self.model.double()
        self.parameters = dict(self.model.named_parameters())
        matching = matcher.HungarianMatcher(cost_class=2, cost_bbox=5, cost_giou=2, focal_alpha=0.25)
        names = ["labels", "boxes"]
        self.criterion = criterion.SetCriterion(
            classes, matching, WEIGHTS, 0.25, names, group_detr=groups, ia_bce_loss=True
        )

    def predict(self, images):
        found = self.model.eval()(self._padded(images))
        return found["pred_logits"], found["pred_boxes"]

    def losses(self, images, targets):
        labels = [{"labels": torch.from_numpy(one), "boxes": torch.from_numpy(boxes)} for one, boxes in targets]
        found = self.criterion.train()(self.model.train()(self._padded(images)), labels)
        found = {name: value for name, value in found.items() if name.startswith("loss_")}
        return found, sum(value * WEIGHTS[name.split("_")[1]] for name, value in found.items())

    def rate(self, name):
        if "backbone.0.encoder" not in name:
            return RATE * (PART_DECAY if "transformer.decoder" in name else 1), DECAY
        num_layers = self.indices[-1] + 1
        layers = {"lr_decay_rate": LAYER_DECAY, "num_layers": num_layers}
        of_module = sys.modules[Backbone.__module__]
        rate = ENCODER_RATE * of_module.get_dinov2_lr_decay_rate(name, **layers) * PART_DECAY**2
        return rate, DECAY * of_module.get_dinov2_weight_decay_rate(name)

    @staticmethod
    def _padded(images):
        return NestedTensor(images, torch.zeros(images.shape[0], *images.shape[2:], dtype=torch.bool))


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


def main(names):
    compute_in_float64()
    for name in names or [name for name in detectors.CONFIGS if name.startswith(("lw", "rf"))]:
        config = detectors.CONFIGS[name]
        source = {"lw_detr": LwDetr, "rf_detr": RfDetr}[config["model_type"]](config)
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
        kept = {key: value.item() for key, value in losses.items() if "cardinality" not in key}
        np.savez_compressed(
            detectors.GOLDEN / f"{name}.npz",
            logits=logits,
            boxes=boxes,
            shapes=json.dumps(source.shapes),
            made_by=source.made_by,
            losses=json.dumps(kept | {"total": total.item()}),
            parameters=json.dumps(list(gradients)),
            gradients=np.array(measured),
            trained=trained(source, images, targets),
        )
        print(name, len(source.shapes), logits.shape, logits.std(), boxes.std((0, 1)), zeros, kept, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
