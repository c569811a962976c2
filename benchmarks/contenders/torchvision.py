"""torchvision's operators, on the device that JAX uses."""

from functools import partial

import jax
import numpy as np

from benchmarks.contenders import Call, Unavailable
from benchmarks.contenders.layout import to_nchw, to_nhwc
from benchmarks.readers import memory
from benchmarks.readers.machine import cores


def prepare(function, problem, backward):
    """function: `function(torchvision.ops, operands, options)` computes the result from tensors by name."""
    torch, ops = load()
    device = "cpu" if jax.default_backend() == "cpu" else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        raise Unavailable("torch was built without CUDA")
    dtype, note = problem.dtype, ""
    if dtype == "bfloat16":
        if device == "cpu":
            raise Unavailable("has no bfloat16")
        dtype, note = "float16", "float16, because it has no bfloat16"

    def tensor(array):
        return torch.tensor(np.asarray(array, np.float32), dtype=getattr(torch, dtype), device=device)

    operands = {name: tensor(to_nchw(name, array)) for name, array in problem.operands.items()}
    cotangent = tensor(to_nchw("y", problem.cotangent))
    varied = [operands[name].requires_grad_(backward) for name in problem.varied]

    def start():
        y = function(ops, operands, problem.options)
        gradients = torch.autograd.grad(y, varied, cotangent) if backward else ()
        return {"y": y.detach(), **dict(zip(problem.varied, gradients, strict=False))}

    def arrays(result):
        return {name: to_nhwc(name, tensor.float().cpu().numpy()) for name, tensor in result.items()}

    on_gpu = device == "cuda"
    return Call(
        start=start,
        wait=(lambda _: torch.cuda.synchronize()) if on_gpu else (lambda _: None),
        arrays=arrays,
        held=partial(cuda_peak, torch) if on_gpu else memory.of_process,
        queued=on_gpu,
        note=note,
    )


def load():
    try:
        import torch
        from torchvision import ops
    except (ImportError, OSError, RuntimeError) as error:
        raise Unavailable(f"cannot be imported ({str(error).splitlines()[0]})") from error
    torch.set_num_threads(cores())
    torch.backends.cuda.matmul.allow_tf32 = True  # as XLA's default precision does
    return torch, ops


def cuda_peak(torch, call):
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    return result, torch.cuda.max_memory_allocated() - before
