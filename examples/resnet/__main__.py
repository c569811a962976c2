"""Run mmdet's deformable ResNet in Flax.

python -m examples.resnet mask_rcnn_r50_fpn_mdconv_c3-c5_1x_coco.pth photo.jpg
python -m examples.resnet checkpoint.safetensors photo.jpg --depth 101 --unmodulated --offset-groups 4 --module ""
"""

import argparse
from collections.abc import Sequence

import jax
import numpy as np
from PIL import Image

from jax_dcn import interop

from .model import DEVIATION, MEAN, STAGES, ResNet


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.resnet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", help="a .pth (read by torch), .safetensors or .npz file")
    parser.add_argument("image")
    parser.add_argument("--module", default="backbone", help="what the network is called in the checkpoint")
    parser.add_argument("--depth", type=int, choices=STAGES, default=50)
    parser.add_argument("--unmodulated", action="store_true", help="without masks: mmdet's DCN, not its DCNv2")
    parser.add_argument("--offset-groups", type=int, default=1, help="mmdet's deform_groups")
    options = parser.parse_args(arguments)

    model = ResNet(options.depth, modulated=not options.unmodulated, offset_groups=options.offset_groups)
    pixels = np.asarray(Image.open(options.image).convert("RGB"), np.float32)
    images = ((pixels - MEAN) / DEVIATION).astype(np.float32)[None]
    variables = interop.from_torch(
        interop.load(options.checkpoint),
        jax.eval_shape(model.init, jax.random.key(0), images),
        module=options.module,
    )
    for feature, stride in zip(jax.jit(model.apply)(variables, images), (4, 8, 16, 32), strict=True):
        print(f"stride {stride:2}: {feature.shape}, mean {feature.mean():.6f}, largest {feature.max():.6f}")


if __name__ == "__main__":
    main()
