"""oneDNN's ordinary convolution through PyTorch, on the CPU, with channels last: the fastest one that is known."""

import jax
import numpy as np

from benchmarks.contenders import Call, Unavailable
from benchmarks.contenders.layout import to_nchw, to_nhwc
from benchmarks.readers import memory
from benchmarks.readers.machine import cores

TAKES = ("x", "weight")


def prepare(problem, backward):
    if jax.default_backend() != "cpu":
        raise Unavailable("runs on the CPU here")
    try:
        import torch
    except (ImportError, OSError) as error:
        raise Unavailable(f"cannot be imported ({str(error).splitlines()[0]})") from error
    torch.set_num_threads(cores())

    def tensor(name, array):
        nchw = torch.tensor(to_nchw(name, np.asarray(array, np.float32)), dtype=getattr(torch, problem.dtype))
        return nchw.to(memory_format=torch.channels_last)

    operands = [tensor(name, problem.operands[name]).requires_grad_(backward) for name in TAKES]
    cotangent = tensor("y", problem.cotangent)
    dilation = problem.options["dilation"]
    options = {"stride": problem.options["stride"], "padding": dilation, "dilation": dilation}

    def start():
        y = torch.nn.functional.conv2d(*operands, **options, groups=problem.options["groups"])
        gradients = torch.autograd.grad(y, operands, cotangent) if backward else ()
        return {"y": y.detach(), **dict(zip(TAKES, gradients, strict=False))}

    return Call(
        start=start,
        wait=lambda _: None,
        arrays=lambda result: {name: to_nhwc(name, value.float().numpy()) for name, value in result.items()},
        held=memory.of_process,
    )
