"""Makes the golden file of Mask R-CNN and Faster R-CNN with mmdet, run by torch on the CPU.

It needs what tests/interop/make_golden.py needs: python -m tests.examples.make_golden_rcnn
"""

import importlib
import json
import pathlib
import sys

import mmcv
import mmengine
import numpy as np
import torch
import torchvision
from mmengine.structures import InstanceData

from tests.helpers import mask_rcnn
from tests.interop.make_golden import Operators as Convolutions

CONFIG = "dcnv2/{}-rcnn_r50-mdconv-c3-c5_fpn_1x_coco.py"
ALL = 10**6  # more samples than there are boxes, so that nothing is left to chance
SHOWN = 8  # masks of each image that are stored


class Operators(Convolutions):
    """Replaces also the operators of regions in the compiled module of mmcv."""

    @staticmethod
    def roi_align_forward(
        x, rois, y, *buffers, aligned_height, aligned_width, spatial_scale, sampling_ratio, pool_mode, aligned
    ):
        assert pool_mode == 1
        size = aligned_height, aligned_width
        y.copy_(torchvision.ops.roi_align(x, rois, size, spatial_scale, sampling_ratio or -1, aligned))

    @staticmethod
    def nms(boxes, scores, iou_threshold, offset):
        assert offset == 0
        return torchvision.ops.nms(boxes, scores, iou_threshold)


def main():
    sys.modules["mmcv._ext"] = mmcv._ext = Operators("mmcv._ext")
    make_differentiable()
    mask, faster = (build(config_of(kind).model) for kind in ("mask", "faster"))
    shapes = {key: list(array.shape) for key, array in mask.state_dict().items()}
    state = {key: torch.from_numpy(array) for key, array in mask_rcnn.state(shapes).items()}
    for model in (mask, faster):
        model.load_state_dict({key: array for key, array in state.items() if key in model.state_dict()}, strict=False)
        model.eval()
    with torch.no_grad():
        arrays = outputs(mask) | crowd(mask, faster) | resized()
    arrays |= training(mask) | {f"faster_{name}": array for name, array in training(faster).items()}
    versions = [f"{package.__name__} {package.__version__}" for package in (torch, torchvision, mmengine)]
    arrays |= {"made_by": ", ".join([*versions, "mmdet 3.3.0, mmcv-lite 2.2.0"]), "shapes": json.dumps(shapes)}
    np.savez_compressed(mask_rcnn.GOLDEN, **arrays)
    make_variant()
    print(mask_rcnn.GOLDEN.stat().st_size, {key: np.shape(array) for key, array in arrays.items()})


def make_variant():
    """A model whose settings are not mmdet's usual ones: what it finds, its anchors, and the text of its config."""
    config = config_of("mask")
    config.model.backbone.style = "caffe"
    config.model.data_preprocessor.update(
        mean=[103.53, 116.28, 123.675], std=[57.375, 57.12, 58.395], bgr_to_rgb=False, pad_size_divisor=64
    )
    config.model.rpn_head.anchor_generator.update(scales=[4, 6], ratios=[0.5, 2.0])
    config.model.rpn_head.bbox_coder.target_stds = [0.5, 0.5, 0.8, 0.8]
    config.model.roi_head.bbox_head.bbox_coder.target_stds = [0.05, 0.05, 0.1, 0.1]
    for extractor in (config.model.roi_head.bbox_roi_extractor, config.model.roi_head.mask_roi_extractor):
        extractor.roi_layer.sampling_ratio = 2
    config.model.test_cfg.rpn.update(nms_pre=300, max_per_img=200, nms=dict(type="nms", iou_threshold=0.6))
    config.model.test_cfg.rcnn.update(score_thr=0.02, max_per_img=60, nms=dict(type="nms", iou_threshold=0.4))
    model = build(config.model)
    shapes = {key: list(array.shape) for key, array in model.state_dict().items()}
    model.load_state_dict({key: torch.from_numpy(array) for key, array in mask_rcnn.state(shapes).items()})
    model.eval()
    with torch.no_grad():
        pixels, metas = prepared(model, 64)
        features = model.extract_feat(pixels)
        proposals = model.rpn_head.predict(features, [sample_of(meta) for meta in metas], rescale=False)
        found = model.roi_head.predict_bbox(features, metas, proposals, model.roi_head.test_cfg, rescale=False)
    arrays = {
        **per_image("boxes", [part.bboxes for part in found]),
        **per_image("scores", [part.scores for part in found]),
        **per_image("labels", [part.labels for part in found]),
        "anchors": model.rpn_head.anchor_generator.grid_priors([(2, 3)] * 5, device="cpu")[1],
        "config": config.pretty_text,
        "shapes": json.dumps(shapes),
    }
    np.savez_compressed(mask_rcnn.VARIANT, **arrays)


def sample_of(meta):
    from mmdet.structures import DetDataSample

    return DetDataSample(metainfo=meta)


def make_differentiable():
    """Lets the layers of mmcv call torchvision's functions, which have gradients."""
    convolution, align = map(importlib.import_module, ("mmcv.ops.modulated_deform_conv", "mmcv.ops.roi_align"))

    def modulated(x, offset, mask, weight, bias, stride, padding, dilation, groups, deform_groups):
        return torchvision.ops.deform_conv2d(x, offset, weight, bias, stride, padding, dilation, mask)

    def aligned(x, rois, size, scale, ratio, mode, is_aligned):
        return torchvision.ops.roi_align(x, rois, size, scale, ratio or -1, is_aligned)

    convolution.modulated_deform_conv2d, align.roi_align = modulated, aligned


def config_of(kind):
    import mmdet
    from mmdet.utils import register_all_modules

    register_all_modules()
    return mmengine.Config.fromfile(pathlib.Path(mmdet.__file__).parent / ".mim/configs" / CONFIG.format(kind))


def build(config):
    """The model of a config, whose samplers keep all boxes."""
    from mmdet.registry import MODELS

    config.backbone.init_cfg = None
    for part in ("rpn", "rcnn"):
        config.train_cfg[part].sampler.num = ALL
    return MODELS.build(config)


def prepared(model, divisor=32):
    """The images, normalised and padded [2, 3, 96, 128], and what mmdet knows of each image."""
    mean, deviation = (part.numpy().reshape(3) for part in (model.data_preprocessor.mean, model.data_preprocessor.std))
    images = mask_rcnn.images()  # in RGB
    images = images if model.data_preprocessor._channel_conversion else images[..., ::-1]
    pixels = (images.astype(np.float32) - mean) / deviation
    padding = [(0, -extent % divisor) for extent in pixels.shape[1:3]]
    pixels = np.pad(pixels, [(0, 0), *padding, (0, 0)]).transpose(0, 3, 1, 2)
    meta = {
        "img_shape": (mask_rcnn.HEIGHT, mask_rcnn.WIDTH),
        "ori_shape": mask_rcnn.ORIGINAL,
        "pad_shape": pixels.shape[2:],
        "batch_input_shape": pixels.shape[2:],
        "scale_factor": (mask_rcnn.WIDTH / mask_rcnn.ORIGINAL[1], mask_rcnn.HEIGHT / mask_rcnn.ORIGINAL[0]),
    }
    return torch.from_numpy(pixels.copy()), [dict(meta) for _ in pixels]


def outputs(model):
    """The results of each stage of inference. The box head and the mask head see the proposals of mmdet."""
    pixels, metas = prepared(model)
    features = model.extract_feat(pixels)
    logits, deltas = model.rpn_head(features)
    proposals = model.rpn_head.predict_by_feat(logits, deltas, batch_img_metas=metas, cfg=model.test_cfg.rpn)
    found = model.roi_head.predict_bbox(features, metas, proposals, model.roi_head.test_cfg, rescale=False)
    mask_rois = roi_tensor(found)
    scale = torch.tensor(metas[0]["scale_factor"]).repeat(2)
    arrays = {f"fpn{level}": feature[:, ::128] for level, feature in enumerate(features)}
    arrays |= {
        "rpn_logits": torch.cat([part.permute(0, 2, 3, 1).flatten(1) for part in logits], 1)[:, ::4],
        **per_image("proposals", [part.bboxes for part in proposals]),
        **per_image("objectness", [part.scores for part in proposals]),
        **per_image("boxes", [part.bboxes / scale for part in found]),
        **per_image("scores", [part.scores for part in found]),
        **per_image("labels", [part.labels for part in found]),
    }
    mask_logits = model.roi_head._mask_forward(features, mask_rois)["mask_preds"]
    mask_logits = mask_logits[torch.arange(len(mask_rois)), torch.cat([part.labels for part in found])]
    arrays |= per_image("mask_logits", [part[:3] for part in mask_logits.split([len(part) for part in found])])
    found = model.roi_head.predict_mask(features, metas, found, rescale=True)
    return arrays | per_image("masks", [np.packbits(part.masks[:SHOWN].numpy(), -1) for part in found])


def truth(metas):
    """The objects as mmdet takes them, in images with padding."""
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks

    samples = []
    for meta, boxes, labels, masks in zip(metas, *mask_rcnn.truth(), strict=True):
        real = labels >= 0
        instances = InstanceData(
            bboxes=torch.from_numpy(boxes[real]),
            labels=torch.from_numpy(labels[real].astype(np.int64)),
            masks=BitmapMasks(np.pad(masks[real], [(0, 0), (0, 6), (0, 4)]), *meta["pad_shape"]),
        )
        samples.append(DetDataSample(metainfo=meta, gt_instances=instances))
    return samples


def crowd(mask, faster):
    """What the three assigners do where objects overlap each other."""
    objects, boxes = map(torch.from_numpy, mask_rcnn.crowd())
    instances = InstanceData(bboxes=objects, labels=torch.zeros(len(objects), dtype=torch.long))
    assigners = {
        "anchors": mask.rpn_head.assigner,
        "mask": mask.roi_head.bbox_assigner,
        "faster": faster.roi_head.bbox_assigner,
    }
    found = {}
    for name, assigner in assigners.items():
        indices = assigner.assign(InstanceData(priors=boxes), instances).gt_inds
        found[f"crowd_{name}"] = (
            torch.where(indices > 0, indices - 1, -1 - (indices < 0).long()).numpy().astype(np.int8)
        )
    return found


def training(model):
    """The losses and norms of their gradients, of inference's proposals and without any random choice."""
    pixels, metas = prepared(model)
    samples = truth(metas)
    features = model.extract_feat(pixels)
    _, proposals = model.rpn_head.loss_and_predict(features, samples, model.test_cfg.rpn)
    objects = [InstanceData(bboxes=part.gt_instances.bboxes, labels=part.gt_instances.labels * 0) for part in samples]
    rpn = model.rpn_head.loss_by_feat(*model.rpn_head(features), objects, metas)
    found = rpn | model.roi_head.loss(features, proposals, samples)
    found = {name: torch.as_tensor(sum(value) if isinstance(value, list) else value) for name, value in found.items()}
    found = {name: value for name, value in found.items() if "loss" in name}
    sum(found.values()).backward()
    parameters = dict(model.named_parameters())
    norms = {
        f"gradient:{name}": parameters[name].grad.double().norm()
        for name in mask_rcnn.WITH_GRADIENTS
        if name in parameters
    }
    return {name: value.detach().numpy().reshape(()) for name, value in (found | norms).items()}


def resized():
    """mmdet's resizing of a small image to two sizes."""
    image = mask_rcnn.images(30, 40, 1)[0]
    return {f"resized{scale[0]}": mmcv.imrescale(image, scale) for scale in ((64, 48), (25, 31))}


def roi_tensor(instances):
    from mmdet.structures.bbox import bbox2roi

    return bbox2roi([part.bboxes for part in instances])


def per_image(name, arrays):
    return {f"{name}{image}": array for image, array in enumerate(arrays)}


if __name__ == "__main__":
    main()
