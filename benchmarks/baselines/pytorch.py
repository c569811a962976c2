"""Functions of PyTorch and torchvision, on the device that JAX uses."""

from functools import partial
from importlib import import_module

import jax
import numpy as np

from benchmarks.baselines import Call, Implementation, Unavailable
from benchmarks.support import memory
from benchmarks.support.machine import cores


def implementation(function, check, takes=None, layout="nchw", agrees_at=None):
    """Calls `function(torch, operands, options)` with tensors by name: those named in `takes`, by default all.

    `check` is called with a problem, and whether it runs on a CPU. It returns the type of the tensors, or raises
    `Unavailable`. The layout is that of the tensors: "nchw", the same with channels last in memory, or "nhwc", in which
    operands are passed as they are.
    """
    return Implementation(partial(prepare, function, check, takes, layout), agrees_at, compiles=False)


def prepare(function, check, takes, layout, problem, backward):
    on_cpu = jax.default_backend() == "cpu"
    torch, dtype = load(), check(problem, on_cpu)
    if not (on_cpu or torch.cuda.is_available()):
        raise Unavailable("torch was built without CUDA")

    def tensor(name, array):
        array = np.asarray(array, np.float32)
        array = array if layout == "nhwc" else to_nchw(name, array)
        made = torch.tensor(array, dtype=getattr(torch, dtype), device="cpu" if on_cpu else "cuda")
        return made.to(memory_format=torch.channels_last) if layout == "channels last" else made

    def array(name, tensor):
        found = tensor.float().cpu().numpy()
        return found if layout == "nhwc" else to_nhwc(name, found)

    operands = {name: tensor(name, problem.operands[name]) for name in takes or problem.operands}
    varied = {name: operands[name].requires_grad_(backward) for name in problem.varied if name in operands}
    cotangent = tensor("y", problem.cotangent)

    def start():
        y = function(torch, operands, problem.options)
        gradients = torch.autograd.grad(y, list(varied.values()), cotangent) if backward else ()
        return {"y": y.detach(), **dict(zip(varied, gradients, strict=False))}

    return Call(
        start=start,
        wait=waiter(torch, on_cpu),
        arrays=lambda result: {name: array(name, tensor) for name, tensor in result.items()},
        held=memory.of_process if on_cpu else partial(cuda_peak, torch),
        queued=not on_cpu,
        note="" if dtype == problem.dtype else f"{dtype}, because it has no {problem.dtype}",
    )


def waiter(torch, on_cpu):
    """The `wait` of a call."""
    return (lambda _: None) if on_cpu else (lambda _: torch.cuda.synchronize())


def load(name="torch"):
    try:
        module = import_module(name)
    except (ImportError, OSError, RuntimeError) as error:
        raise Unavailable(f"cannot be imported ({str(error).splitlines()[0]})") from error
    if name == "torch":
        module.set_num_threads(cores())
        module.backends.cuda.matmul.allow_tf32 = True  # as XLA's default precision does
    return module


def cuda_peak(torch, call):
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    return result, torch.cuda.max_memory_allocated() - before


def torchvision_type(problem, on_cpu):
    load("torchvision.ops")
    if problem.dtype == "bfloat16" and on_cpu:
        raise Unavailable("has no bfloat16")
    return "float16" if problem.dtype == "bfloat16" else problem.dtype


def onednn_type(problem, on_cpu):
    if not on_cpu:
        raise Unavailable("runs on the CPU here")
    return problem.dtype


def float32_type(problem, on_cpu):
    if problem.dtype != "float32":
        raise Unavailable("needs values and locations of one type")
    return problem.dtype


def deform_conv2d(torch, operands, options):
    """torchvision's."""
    dilation = options["dilation"]
    sampling = {"stride": options["stride"], "padding": dilation, "dilation": dilation}
    x, offset, weight, mask = (operands[name] for name in ("x", "offset", "weight", "mask"))
    return load("torchvision.ops").deform_conv2d(x, offset, weight, mask=mask, **sampling)


def roi_align(torch, operands, options):
    """torchvision's."""
    return load("torchvision.ops").roi_align(*operands.values(), **options, aligned=True)


def ordinary_convolution(torch, operands, options):
    """The convolution of oneDNN on a CPU, with channels last: the fastest one that is known."""
    x, weight = operands.values()
    options = {"padding": options["dilation"]} | options  # by default that of 3 x 3 taps
    return torch.nn.functional.conv2d(x, weight, **options)


def attention(torch, operands, options):
    """Multi-scale deformable attention without kernels of its own: `grid_sample` on each level, then a sum."""
    value, sampling_locations, attention_weights = operands.values()
    spatial_shapes = options["spatial_shapes"]
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


def grid_sample(torch, operands, options):
    """PyTorch's, which wants as many dimensions of points as images have."""
    x, grid = operands.values()
    points = grid.shape[1:-1]
    grid = grid.reshape(len(grid), *points, *[1] * (x.ndim - grid.ndim), grid.shape[-1])
    y = torch.nn.functional.grid_sample(x, grid, align_corners=False)
    return y.reshape(*y.shape[:2], *points)


def to_nchw(name, array):
    """Converts the operand of an operator with this name, or its result "y"."""
    if name in ("rois", "grid"):
        return np.asarray(array)
    return np.ascontiguousarray(np.transpose(array, (3, 2, 0, 1)) if name == "weight" else np.moveaxis(array, -1, 1))


def to_nhwc(name, array):
    if name == "grid":
        return array
    return np.transpose(array, (2, 3, 1, 0)) if name == "weight" else np.moveaxis(array, 1, -1)
