"""Multi-scale deformable attention in PyTorch without kernels of its own: `grid_sample` on each level, then a sum."""

from functools import partial

import jax
import numpy as np

from benchmarks.contenders import Call, Unavailable
from benchmarks.contenders.torchvision import cuda_peak
from benchmarks.readers import memory
from benchmarks.readers.machine import cores


def prepare(problem, backward):
    try:
        import torch
    except (ImportError, OSError, RuntimeError) as error:
        raise Unavailable(f"cannot be imported ({str(error).splitlines()[0]})") from error
    torch.set_num_threads(cores())
    device = "cpu" if jax.default_backend() == "cpu" else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        raise Unavailable("torch was built without CUDA")
    if problem.dtype != "float32":
        raise Unavailable("needs values and locations of one type")

    def tensor(array):
        return torch.tensor(np.asarray(array, np.float32), device=device)

    operands = {name: tensor(array) for name, array in problem.operands.items()}
    varied = [operands[name].requires_grad_(backward) for name in problem.varied]
    cotangent = tensor(problem.cotangent)

    def start():
        y = attention(torch, **operands, **problem.options)
        gradients = torch.autograd.grad(y, varied, cotangent) if backward else ()
        return {"y": y.detach(), **dict(zip(problem.varied, gradients, strict=False))}

    on_gpu = device == "cuda"
    return Call(
        start=start,
        wait=(lambda _: torch.cuda.synchronize()) if on_gpu else (lambda _: None),
        arrays=lambda result: {name: array.cpu().numpy() for name, array in result.items()},
        held=partial(cuda_peak, torch) if on_gpu else memory.of_process,
        queued=on_gpu,
    )


def attention(torch, value, sampling_locations, attention_weights, *, spatial_shapes):
    batch, _, heads, channels = value.shape
    queries = sampling_locations.shape[1]
    # Heads are images to grid_sample, whose grid is from -1 to 1.
    grid = (2 * sampling_locations - 1).transpose(1, 2).flatten(0, 1)
    weights = attention_weights.transpose(1, 2).reshape(batch * heads, 1, queries, -1)
    samples = []
    for level, pixels in enumerate(value.split([height * width for height, width in spatial_shapes], dim=1)):
        image = pixels.permute(0, 2, 3, 1).reshape(batch * heads, channels, *spatial_shapes[level])
        samples.append(torch.nn.functional.grid_sample(image, grid[:, :, level], align_corners=False))
    total = (torch.cat(samples, -1) * weights).sum(-1)
    return total.reshape(batch, heads * channels, queries).transpose(1, 2)
