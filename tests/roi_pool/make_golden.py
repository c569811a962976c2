"""Writes the golden files of torchvision's RoIAlign: `python -m tests.roi_pool.make_golden`, where torchvision is."""

import json
import pathlib

import numpy as np

from tests.helpers.roi_pool.cases import regions

FOLDER = pathlib.Path(__file__).parents[1] / "golden/roi_pool/roi_align"
CASES = {
    "adaptive": {"sampling_ratio": 0, "aligned": True},
    "ratio_2": {"sampling_ratio": 2, "aligned": True},
    "unaligned_adaptive": {"sampling_ratio": 0, "aligned": False},
    "unaligned_ratio_3": {"sampling_ratio": 3, "aligned": False},
    "ps_adaptive": {"sampling_ratio": 0},
    "ps_ratio_2": {"sampling_ratio": 2},
}
SIZE, SCALE, OUTPUT = (7, 9), 0.375, (3, 2)


def main():
    import torch
    import torchvision

    random = np.random.default_rng(0)
    for name, options in CASES.items():
        ps = name.startswith("ps")
        channels = 2 * OUTPUT[0] * OUTPUT[1] if ps else 3
        x = random.normal(size=(2, channels, *SIZE)).astype(np.float32).astype(np.float64)
        rois = regions(random, 16, 2, max(SIZE) / SCALE).astype(np.float32).astype(np.float64)
        if ps and not options["sampling_ratio"]:
            rois[:, 3:] = np.maximum(rois[:, 3:], rois[:, 1:3] + 0.125)  # torchvision divides 0 by 0 otherwise
        function = torchvision.ops.ps_roi_align if ps else torchvision.ops.roi_align
        variable = torch.tensor(x, requires_grad=True)
        y = function(variable, torch.tensor(rois), OUTPUT, SCALE, **options)
        gy = random.normal(size=y.shape).astype(np.float32).astype(np.float64)
        (gx,) = torch.autograd.grad(y, variable, torch.tensor(gy))
        meta = {"torchvision": torchvision.__version__, "position_sensitive": ps, **options}
        arrays = {"x": x, "rois": rois, "gy": gy, "y": y.detach().numpy(), "gx": gx.numpy()}
        np.savez_compressed(FOLDER / f"{name}.npz", **arrays, meta=np.array(json.dumps(meta)))


if __name__ == "__main__":
    main()
