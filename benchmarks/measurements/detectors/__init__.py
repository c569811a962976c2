"""Whole detectors, each by several implementations: "jax_dcn", which is that of examples/, and those of others."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.baselines import Call, Unavailable
from benchmarks.baselines.pytorch import cuda_peak, load, waiter
from benchmarks.support import memory

OBJECTS, CLASSES = 10, 80  # of an image, and of the model
DTYPES = ("float32", "bfloat16")  # of the products; parameters are float32
NO_GRAPHS = {"xla_gpu_graph_min_graph_size": 1_000_000}


class Images(NamedTuple):
    """Random images, uint8 [batch, height, width, 3], and their objects: boxes [batch, OBJECTS, 4], (centre x,
    centre y, width, height) in fractions of the image, and classes."""

    pixels: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray

    @property
    def corners(self) -> np.ndarray:
        """(x0, y0, x1, y1) of the boxes in pixels."""
        centres, sizes = np.split(self.boxes * np.tile(self.pixels.shape[2:0:-1], 2), 2, -1)
        return np.concatenate([centres - sizes / 2, centres + sizes / 2], -1)


class Prepared(NamedTuple):
    """The calls of an implementation: a forward, and a training step if it can train.

    scores: what the forward finds, if others must agree. first_step: the seconds of making the first step.
    """

    forward: Call
    step: Call | None = None
    scores: np.ndarray | None = None
    first_step: dict[str, float] | None = None


class Program(NamedTuple):
    """A model in JAX.

    forward: of the variables and the arguments; returns the scores first. step: of a state and a batch; returns the
    next state and the losses.
    """

    forward: Callable[..., Any]
    variables: Any
    arguments: tuple[Any, ...]
    step: Callable[..., Any]
    state: Any
    batch: Any


class Detector(NamedTuple):
    """A detector: the height and width of its images, what writes its checkpoint to a folder, and its implementations.

    Those, and the program of "jax_dcn", are made from the folder, the images and the type.
    """

    size: tuple[int, int]
    write: Callable[[Path], None]
    program: Callable[[Path, Images, str], Program]
    others: dict[str, Callable[[Path, Images, str], Prepared]]

    @property
    def implementations(self) -> dict[str, Callable[[Path, Images, str], Prepared]]:
        ours = {"jax_dcn": of_jax, "without CUDA graphs": without_cuda_graphs}
        return {name: partial(prepare, self.program) for name, prepare in ours.items()} | self.others


def images(batch: int, size: tuple[int, int]) -> Images:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (batch, *size, 3), np.uint8)
    centres, sizes = random.uniform(0.3, 0.7, (batch, OBJECTS, 2)), random.uniform(0.1, 0.5, (batch, OBJECTS, 2))
    boxes = np.concatenate([centres, sizes], -1).astype(np.float32)
    return Images(pixels, boxes, random.integers(0, CLASSES, (batch, OBJECTS), np.int32))


def of_jax(
    program: Callable[[Path, Images, str], Program], folder: Path, batch: Images, dtype: str, options: Any = None
) -> Prepared:
    """A model in JAX, compiled with options of XLA."""
    forward, variables, arguments, step, state, data = program(folder, batch, dtype)
    queued = jax.default_backend() == "gpu"
    find = jax.jit(forward).lower(variables, *arguments).compile(options)
    found = Call(partial(find, variables, *arguments), held=partial(planned, find), queued=queued)
    scores = np.asarray(jax.tree.leaves(found())[0], np.float32)
    first_step, states = {}, [state]
    for start in ("", " again"):  # again: the program is in the persistent cache
        jax.clear_caches()
        begin = time.perf_counter()
        lowered = jax.jit(step, donate_argnums=0).lower(states[0], data)
        traced = time.perf_counter()
        train = lowered.compile(options)
        compiled = time.perf_counter()
        states[0] = jax.block_until_ready(train(states[0], data))[0]
        seconds = {"tracing": traced - begin, "compiling": compiled - traced, "all": time.perf_counter() - begin}
        first_step |= {name + start: value for name, value in seconds.items()}
    first_step["operations"] = lowered.as_text().count(" = ")

    def next_step():
        states[0], measured = train(states[0], data)
        return measured

    trained = Call(next_step, held=partial(planned, train), queued=queued)
    return Prepared(found, trained, scores, first_step)


def planned(executable, call):
    """The result of a call, and the bytes of its temporary arrays and of those results that replace no argument."""
    replaced = executable.memory_analysis().alias_size_in_bytes
    return call(), memory.of_compiled(executable) - replaced


def of_torch(forward, loss, parameters, optimiser, clip_norm, *, dtype) -> Prepared:
    """A model in torch. forward: returns the scores. loss: in training, of the batch."""
    torch, on_cpu = load(), jax.default_backend() == "cpu"
    narrow = partial(torch.autocast, "cpu" if on_cpu else "cuda", torch.bfloat16, enabled=dtype == "bfloat16")

    def find():
        with torch.no_grad(), narrow():
            return forward()

    def train():
        optimiser.zero_grad()
        with narrow():
            value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
        optimiser.step()
        return value.detach()

    held = memory.of_process if on_cpu else partial(cuda_peak, torch)
    calls = [Call(one, wait=waiter(torch, on_cpu), held=held, queued=not on_cpu) for one in (find, train)]
    scores = find().float().cpu().numpy()  # of the weights before the first step
    begin = time.perf_counter()
    calls[1]()  # also makes the state of the optimiser
    return Prepared(*calls, scores, {"all": time.perf_counter() - begin})


def torch_device():
    return load().device("cpu" if jax.default_backend() == "cpu" else "cuda")


def without_cuda_graphs(program, folder, batch, dtype):
    """A model in JAX, whose programs start each kernel by itself."""
    if jax.default_backend() != "gpu":
        raise Unavailable("runs on the GPU")
    return of_jax(program, folder, batch, dtype, NO_GRAPHS)
