"""The same bits on every run, whatever the number of threads."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests.helpers.deform_conv.cases import Case, cast, compiled_pull_back
from tests.helpers.deform_conv.numpy_reference import Convolution

# Many samples fall on few pixels, so the test would notice a summation order that depends on the threads.
CROWDED = Case("crowded", (24, 24), 32, 8, (3, 3), 2, (4,), Convolution(padding="SAME"))
# One image: two threads share its channels, and also the channels of one offset group.
ONE_IMAGE = Case("one_image", (24, 24), 40, 8, (3, 3), 2, (1,), Convolution(padding="SAME"))
# Slices of channels share an offset group, and images follow each other in parts.
SLICES = Case("slices", (16, 17), 192, 32, (2, 2), 1, (11,), Convolution(padding="SAME"))
# The sums of an image take so much memory that only some of the tasks run at a time.
MORE_TASKS_THAN_SLOTS = Case("more_tasks_than_slots", (150, 160), 192, 32, (1, 1), 1, (2,), Convolution(padding="SAME"))

PROGRAM = """
import os, sys
os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:int(sys.argv[1])]))
import numpy as np, jax, jax_dcn
with np.load(sys.argv[2]) as file:
    arguments = [file[name] for name in ("cotangent", "x", "offset", "weight", "mask")]
backend, dtype = sys.argv[4:]
arguments = [a.astype(dtype) if i in (0, 1, 3) else a for i, a in enumerate(map(jax.numpy.asarray, arguments))]
gradients = {
    name: getattr(jax_dcn, f"deform_conv2d_{name}_grad")(*arguments, backend=backend)
    for name in ("input", "offset", "mask", *(["weight"] if backend == "fused" else []))
}
# A 1x1 identity kernel returns the samples unchanged: no matrix product rounds them.
identity = jax.numpy.eye(arguments[1].shape[-1], dtype=dtype)[None, None]
_, x, offset, _, mask = arguments
samples = jax_dcn.deform_conv2d(x, offset[..., :2], identity, mask=mask[..., :1], backend=backend)
results = {"samples": samples, **gradients}
if backend == "fused":  # whose products are its own; together, the gradients are other tasks
    def convolve(x, offset, weight, mask):
        return jax_dcn.deform_conv2d(x, offset, weight, mask=mask, backend=backend)

    y, pull_back = jax.vjp(convolve, *arguments[1:])
    results |= {"y": y} | {f"{i} together": d for i, d in enumerate(jax.jit(pull_back)(arguments[0]))}
results = {name: np.asarray(array, np.float32) for name, array in results.items()}
np.savez(sys.argv[3], **results)
"""


def crowded_arguments(case=CROWDED):
    return cast((case.cotangent(), case.operands(offset_scale=6.0)), np.float32)


@pytest.mark.optimized
@pytest.mark.parametrize("backend", [None, "reference"])
def test_repeated_runs_agree_to_the_last_bit(backend, platform):
    if (backend, platform) == ("reference", "cuda"):
        pytest.skip("XLA's scatter adds in any order on a GPU")
    run = compiled_pull_back(CROWDED, backend)
    first = run(*crowded_arguments())
    for _ in range(5 if backend is None else 1):
        jax.tree.map(np.testing.assert_array_equal, run(*crowded_arguments()), first)


@pytest.mark.platforms("cpu")
@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores to choose from"
)
@pytest.mark.parametrize(
    "case, backend, dtype",
    [
        (CROWDED, "plain", "float32"),
        (ONE_IMAGE, "plain", "float32"),
        (SLICES, "fused", "float32"),
        (SLICES, "fused", "bfloat16"),
        (SLICES, "fused", "float16"),
        (MORE_TASKS_THAN_SLOTS, "fused", "bfloat16"),
    ],
    ids=str,
)
def test_results_do_not_depend_on_the_number_of_threads(case, backend, dtype, tmp_path):
    cotangent, operands = crowded_arguments(case)
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, cotangent=cotangent, **{k: v for k, v in operands._asdict().items() if k != "bias"})
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    results = []
    for cores in (1, 2):
        output = tmp_path / f"{cores}.npz"
        command = [sys.executable, "-c", PROGRAM, str(cores), str(inputs), str(output), backend, dtype]
        subprocess.run(command, check=True, env=environment)
        with np.load(output) as file:
            results.append(dict(file))
    for name, one_core in results[0].items():
        np.testing.assert_array_equal(results[1][name], one_core, err_msg=name)
