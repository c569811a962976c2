"""The compiled PTX of all kernels runs without a fault in the interpreter, and mutations of the kernels are found.

Small kernels (toys.cu) show each kind of fault. That the results are right is tested in test_operators.py.
"""

import json
import re

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.lowering import executed_ptx
from benchmarks.lowering.executed_ptx import run

from . import build
from .mutations import MUTATIONS, VALUES

pytestmark = [
    pytest.mark.platforms("cpu"),
    pytest.mark.skipif(executed_ptx.missing() is not None, reason=str(executed_ptx.missing())),
]

TYPES = (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64)  # in the order of DType in lib/dtype.h
RESOLUTION = (2**-10, 2**-7, 2**-20, 2**-40)


def launches(**options):
    return executed_ptx.program(build.HERE / "launches.cc", **options)


def read_results(path):
    """Name, type and values of each result that launches.cc has written."""
    data, start = path.read_bytes(), 0
    while start < len(data):
        end = data.index(b"\n", start)
        name, dtype, count = data[start:end].rsplit(maxsplit=2)
        start = end + 1 + int(count)
        values = np.frombuffer(data[end + 1 : start], TYPES[int(dtype)]).astype(np.float64)
        yield name.decode(), int(dtype), values


def differences(path, expected):
    """The results that differ from the expected ones by more than the inexactness of their type allows."""
    found = []
    for number, (result, reference) in enumerate(zip(read_results(path), read_results(expected), strict=True)):
        name, dtype, values = result
        assert (name, dtype, values.size) == (*reference[:2], reference[2].size)
        same = (values == reference[2]) | (np.isnan(values) & np.isnan(reference[2]))
        cancelled = 2**-7  # differences of equal numbers are nearly 0
        largest = np.abs(reference[2][np.isfinite(reference[2])]).max(initial=cancelled)
        with np.errstate(invalid="ignore"):
            error = np.where(same, 0, np.abs(values - reference[2])).max(initial=0)
        if not error <= 4 * RESOLUTION[dtype] * largest:
            found.append(f"result {number}, {name}, differs by {error}")
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The results of launches.cc, and the names of the kernels that it does not use."""
    path = tmp_path_factory.mktemp("results") / "expected"
    status, output = run(launches(), path, lists_unused=1)
    done, *unused = output.splitlines()
    assert (status, done) == (0, "every launch is done")
    return path, set(unused)


# The package's machine code is compiled from the PTX for compute_80, unless a user builds it for other architectures.
@pytest.mark.thorough
def test_another_architecture_has_the_same_results(expected, tmp_path):
    assert run(launches(architecture=90), tmp_path / "results") == (0, "every launch is done\n")
    assert differences(tmp_path / "results", expected[0]) == []


@pytest.mark.thorough
def test_results_do_not_depend_on_the_order_of_blocks_and_warps(expected, tmp_path):
    assert run(launches(), tmp_path / "results", seed=2)[0] == 0
    assert (tmp_path / "results").read_bytes() == expected[0].read_bytes()


# A single SM takes rounds of more samples. A single block iterates over several of them.
SMALL_GPU = {"sms": 1, "max_grid_blocks": 1}


@pytest.mark.thorough
def test_a_small_gpu_has_the_same_results_and_runs_the_other_kernels(expected, tmp_path):
    status, output = run(launches(), tmp_path / "results", lists_unused=1, **SMALL_GPU)
    assert (status, output.splitlines()[0]) == (0, "every launch is done")
    assert differences(tmp_path / "results", expected[0]) == []
    assert expected[1].isdisjoint(output.splitlines()[1:])


RESERVED = 1 << 10  # bytes of shared memory that a resident block takes beyond its own
A100_SHARED, H100_SHARED = 164 << 10, 228 << 10  # bytes of an SM
MIN_WARPS = 8  # two for each scheduler of an SM


@pytest.mark.thorough
def test_shared_memory_has_room_for_the_resident_blocks_of_every_kernel():
    """The compiler limits registers to what the launch bounds ask for, but not shared memory."""
    status, output = run(launches(), "--leave-unwritten", records_launches=1, runs_blocks=0)
    done, *lines = output.splitlines()
    assert (status, done) == (0, "every launch is done")
    records = [record for line in lines for record in json.loads(line)]
    assert len(records) > 10
    for record in records:
        block = record["shared_bytes"] + RESERVED
        assert H100_SHARED // block >= record["resident_blocks"], record
        assert A100_SHARED // block * record["threads"] // 32 >= MIN_WARPS, record


def test_mutations_are_in_the_source():
    """Most mutations are compiled only by `make thorough`, or on a GPU."""
    for mutation in MUTATIONS.values():
        build.mutated_source(build.LIB / mutation.file, mutation.change)


@pytest.mark.parametrize("name", build.mutations(MUTATIONS, always=[]))
def test_mutations_are_found(name, expected, tmp_path):
    kernels = MUTATIONS[name].kernels(tmp_path)
    status, output = run(launches(kernels=kernels), tmp_path / "results", max_grid_blocks=MUTATIONS[name].blocks)
    if MUTATIONS[name].report == VALUES:
        assert status == 0, output
        output = "\n".join(differences(tmp_path / "results", expected[0]))
    else:
        assert status != 0
    assert re.search(MUTATIONS[name].report, output), output


RIGHT = {  # what the 64 threads write
    "rotate": [100 + (lane + 1) % 64 for lane in range(64)],
    "shuffle": [8 if lane % 32 < 16 else 7 for lane in range(64)],
    "warp": list(range(64)),
    "count": [21] * 32 + [22] * 32,  # of the threads of a warp whose number is not one more than a multiple of three
}
WRONG = {
    "unwritten": "reads memory that was not written",
    "misaligned": "is misaligned",
    "static_beyond": "out of bounds of its variable",
    "array_in_local_memory": "unknown directive",
    "two_barriers": "waits while other warps wait at another barrier",
    "divergent_barrier": r"waits for lanes 0x00000020 of its warp, .* have ended",
    "divergent_shuffle": r"waits for lanes 0x00000020 of its warp, .* have ended",
    "excluded_lane": "shuffles from a lane that does not take part",
    "rotate_without_first_barrier": "is a race: it .* what another thread",
    "rotate_without_second_barrier": "is a race: it .* what another thread",
    "warp_without_barrier": "is a race: it reads what another thread writes",
    "count_without_first_barrier": "is a race: it writes what another thread writes",
    "count_without_second_barrier": "is a race: it reads what another thread writes",
    "count_of_two_warps": "is a race: it writes what another thread writes",
    "overlapping_blocks": "is a race: it writes what another block writes",
    "unknown_instruction": "the interpreter has no nanosleep.u32",
    "no_blocks": "invalid configuration argument",
}


def toy(name, **options):
    return run(executed_ptx.program(build.HERE / "toys.cu", kernels={}), name, **options)


@pytest.mark.parametrize("name", RIGHT)
def test_right_toys_are_clean(name):
    status, output = toy(name)
    assert status == 0, output
    assert [int(value) for value in output.split()] == RIGHT[name]


@pytest.mark.parametrize("name", WRONG)
def test_wrong_toys_are_found(name):
    status, output = toy(name)
    assert status != 0
    assert re.search(WRONG[name], output), output
