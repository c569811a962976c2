"""Makes the golden files of this folder from the models of mmdet and mmcv, run by torch on the CPU.

It needs torch, torchvision, mmdet and mmcv-lite. Operators of torchvision replace the compiled operators of mmcv:
python -m tests.interop.make_golden
"""

import pathlib
import sys
import types

import mmcv
import mmengine
import numpy as np
import torch
import torchvision

from tests.helpers import checkpoints

FOLDER = pathlib.Path(__file__).parent / "golden"
mmcv.__version__ = "2.1.0"  # the newest that mmdet 3.3.0 accepts


class Operators(types.ModuleType):
    """Replaces the compiled module of mmcv."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **keywords: None

    @staticmethod
    def deform_conv_forward(x, weight, offset, y, *buffers, padH, padW, dH, dW, dilationH, dilationW, **sizes):
        window = {"stride": (dH, dW), "padding": (padH, padW), "dilation": (dilationH, dilationW)}
        y.copy_(torchvision.ops.deform_conv2d(x, offset, weight, **window))

    @staticmethod
    def modulated_deform_conv_forward(
        x, weight, bias, ones, offset, mask, y, columns, *, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w,
        with_bias, **sizes,
    ):  # fmt: skip
        window = {"stride": (stride_h, stride_w), "padding": (pad_h, pad_w), "dilation": (dilation_h, dilation_w)}
        y.copy_(torchvision.ops.deform_conv2d(x, offset, weight, bias if with_bias else None, mask=mask, **window))


def main():
    sys.modules["mmcv._ext"] = mmcv._ext = Operators("mmcv._ext")
    from mmcv.ops import DeformConv2dPack, ModulatedDeformConv2dPack
    from mmdet.models.backbones import ResNet

    FOLDER.mkdir(exist_ok=True)
    stages = (False, True, True, True)
    for name, kind, groups in [("DCN", DeformConv2dPack, 4), ("DCNv2", ModulatedDeformConv2dPack, 1)]:
        model = ResNet(50, dcn={"type": name, "deform_groups": groups}, stage_with_dcn=stages)
        features = run(model, checkpoints.image())
        # Some channels of each stage.
        write(f"mmdet_resnet50_{name}", **{f"stage{i}": array[:, ::32] for i, array in enumerate(features)})

        bias = {} if name == "DCN" else {"bias": True}
        layer = kind(8, 6, 3, stride=2, padding=2, dilation=2, groups=2, deform_groups=4, **bias)
        x = np.random.default_rng(1).normal(size=(2, 9, 11, 8)).astype(np.float32)
        write(f"mmcv_{name}", x=x, y=run(layer, x), **{key: value.numpy() for key, value in layer.state_dict().items()})


def run(model, x):
    """The outputs of the model for NHWC images, as NCHW arrays."""
    shapes = {name: tuple(array.shape) for name, array in model.state_dict().items()}
    state = {name: torch.from_numpy(array) for name, array in checkpoints.fill(shapes).items()}
    model.load_state_dict(state)
    model.eval()
    with torch.no_grad():
        outputs = model(torch.from_numpy(x.transpose(0, 3, 1, 2).copy()))
    return [array.numpy() for array in outputs] if isinstance(outputs, tuple) else outputs.numpy()


def write(name, **arrays):
    versions = [f"{package.__name__} {package.__version__}" for package in (torch, torchvision, mmengine)]
    np.savez_compressed(
        FOLDER / f"{name}.npz", made_by=", ".join([*versions, "mmdet 3.3.0, mmcv-lite 2.2.0"]), **arrays
    )
    print(name, {key: array.shape for key, array in arrays.items()})


if __name__ == "__main__":
    main()
