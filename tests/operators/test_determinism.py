"""The same bits on every run, whatever the number of threads."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn
from tests.helpers.aggregation.cases import Attention
from tests.helpers.deform_conv.cases import Case, cast, explicit_gradients
from tests.helpers.deform_conv.numpy_reference import Convolution
from tests.helpers.operators import pull_back
from tests.helpers.roi_pool.cases import RoIAlign
from tests.helpers.roi_pool.numpy_reference import Align

SAME = Convolution(padding="SAME")
# Many samples fall on few pixels, so that a summation order that depends on the threads would be noticed.
CASES = {
    "convolution": Case("crowded", (24, 24), 32, 8, (3, 3), 2, (4,), SAME),
    # Two threads share the channels of the only image, and also the channels of one offset group.
    "one image": Case("one_image", (24, 24), 40, 8, (3, 3), 2, (1,), SAME),
    # Slices of channels share an offset group, and tiles add to several partial sums of the weight.
    "slices": Case("slices", (16, 17), 192, 32, (2, 2), 1, (11,), SAME),
    # The sums of a slice take so much memory that only some of them are resident.
    "few planes": Case("few_planes", (150, 160), 192, 32, (1, 1), 1, (2,), SAME),
    "attention": Attention(((9, 8), (4, 5)), (3, 3), queries=500, heads=3, channels=8),
    # Channels of the only head are divided.
    "one head": Attention(((9, 8), (4, 5)), (3, 3), queries=500, heads=1, channels=40),
    "mean of regions": RoIAlign(Align((7, 7), 0.5), image=(20, 24), features=33, count=200),
    "maximum of regions": RoIAlign(Align((7, 7), 0.5, mode="max"), image=(20, 24), features=33, count=200),
}
RUNS = [  # case, backend and dtype
    *((name, "im2col", "float32") for name in ("convolution", "one image")),
    *(("slices", "fused", dtype) for dtype in ("float32", "bfloat16")),
    ("few planes", "fused", "bfloat16"),
    *((name, None, "float32") for name in ("attention", "one head", "mean of regions", "maximum of regions")),
]


def results(name, backend, dtype):
    """What kernels compute: the result and the gradients, which are other tasks if only one is requested.

    On the im2col path, XLA's products compute the result and the gradient of the weight.
    """
    case = CASES[name]
    operands, cotangent = cast((case.operands(), case.cotangent()), np.float32)
    if not isinstance(case, Case):
        return jax.tree.leaves(pull_back(case.with_backend(), cotangent, operands))
    x, weight, cotangent = (jnp.asarray(array, dtype) for array in (operands.x, operands.weight, cotangent))
    operands = operands._replace(x=x, weight=weight, bias=None)
    run = jax.jit(functools.partial(pull_back, case.with_backend(backend)))
    gradients = functools.partial(explicit_gradients, backend=backend, **case.keywords)
    result, together = run(cotangent, operands)
    by_name = [together._asdict()]
    by_name += [{n: jax.jit(lambda *a, n=n: getattr(gradients(*a), n))(cotangent, operands)} for n in ("x", "weight")]
    if backend == "fused":
        return [result, *jax.tree.leaves(by_name)]
    # A 1x1 identity kernel returns the samples unchanged: no product rounds them.
    identity = jnp.eye(x.shape[-1], dtype=dtype)[None, None]
    samples = jax_dcn.deform_conv2d(x, operands.offset[..., :2], identity, mask=operands.mask[..., :1], backend=backend)
    return [samples, *(array for some in by_name for n, array in some.items() if n not in ("weight", "bias"))]


def main(cores, path):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    named = {f"{'-'.join(map(str, run))}-{k}": array for run in RUNS for k, array in enumerate(results(*run))}
    np.savez(path, **cast(named, np.float32))


@pytest.mark.slow
@pytest.mark.platforms("cpu")
@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores to choose from"
)
def test_results_do_not_depend_on_the_number_of_threads(tmp_path):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    by_cores = []
    for cores in (1, 2):
        path = tmp_path / f"{cores}.npz"
        script = f"from tests.operators import test_determinism as test; test.main({cores}, {str(path)!r})"
        subprocess.run([sys.executable, "-c", script], check=True, env=environment)
        with np.load(path) as file:
            by_cores.append(dict(file))
    assert by_cores[0].keys() == by_cores[1].keys()
    for name, array in by_cores[0].items():
        np.testing.assert_array_equal(by_cores[1][name], array, err_msg=name)


@pytest.mark.optimized
@pytest.mark.parametrize(
    "name, backend",
    [("convolution", "reference"), *((n, None) for n in ("convolution", "attention", "mean of regions"))],
)
def test_repeated_runs_agree_to_the_last_bit(name, backend, platform):
    if (backend, platform) == ("reference", "cuda"):
        pytest.skip("XLA's scatter adds in any order on a GPU")
    case = CASES[name]
    operands, cotangent = cast((case.operands(), case.cotangent()), np.float32)
    run = jax.jit(functools.partial(pull_back, case.with_backend(backend)))
    first = run(cotangent, operands)
    for _ in range(5):
        jax.tree.map(np.testing.assert_array_equal, run(cotangent, operands), first)
