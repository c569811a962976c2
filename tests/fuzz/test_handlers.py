"""Replays the fuzzer's corpus and mutations of it under sanitizers: each call fails cleanly or writes its results.

corpus.bin contains the inputs that gave libFuzzer its coverage, each after its length in two bytes.
"""

import hashlib
import pathlib
import re
import shutil
import subprocess

import pytest

from benchmarks.lowering import executed_ptx
from tests.kernels import build

pytestmark = [pytest.mark.platforms("cpu"), pytest.mark.usefixtures("compiler")]

CORPUS = pathlib.Path(__file__).parent / "corpus.bin"
# Backend: (N, mutated), where every N-th input of the corpus is replayed, and then so many mutated inputs.
RUNS = {"contract": (1, 20_000), "cpu_contract": (1, 20_000), "cpu": (1, 5_000), "cuda": (1, 0)}


@pytest.fixture(scope="module")
def compiler():
    if shutil.which(build.COMPILER) is None or not build.has("memory"):
        pytest.skip(f"the fuzzer is built with {build.COMPILER} and its sanitizers")


def replay(backend, step, mutated, changed=build.LIB):
    if not backend.startswith("cpu") and executed_ptx.missing():  # the handlers include the CUDA toolkit's headers
        pytest.skip(executed_ptx.missing())
    command = [build.fuzzer(backend, changed=changed), CORPUS, str(step), str(mutated)]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return result.returncode, result.stdout


@pytest.mark.parametrize("backend", RUNS)
def test_any_call_is_refused_or_succeeds(backend):
    status, output = replay(backend, *RUNS[backend])
    assert status == 0, output
    assert output.endswith("changed ones are done\n")


# The file and pattern of a check that is removed, and a file of handlers that compiles it.
MUTATIONS = {
    "workspace": ("ffi/deform_conv.cc", r"checks\.Shape\(\"workspace.*?;", "deform_conv.cc"),
    "rows": ("ffi/conv_operands.h", r"checks\.FitsInt32\(\"the number of the output's rows.*?;", "deform_conv.cc"),
    "contributions": (
        "ffi/deform_conv_fused.cc",
        r"checks\.FitsInt32\(\"the number of contributions.*?;",
        "deform_conv_fused.cc",
    ),
    "vectors": (
        "ffi/deform_conv_fused.cc",
        r"checks\.Require\(vectors <= FusedLimits::kMaxVectors.*?;",
        "deform_conv_fused.cc",
    ),
    "rois": ("ffi/roi_pool.cc", r"checks\.Shape\(\"rois.*?;", "roi_pool.cc"),
    "groups of the CPU": (
        "ffi/conv_operands.h",
        r"checks\.Require\(product\.features % .*?;",
        "deform_conv_fused_cpu.cc",
    ),
} | {
    f"{name} of the CPU": ("ffi/deform_conv_fused_cpu.cc", check, "deform_conv_fused_cpu.cc")
    for name, check in {
        "rules": r"checks\.Require\(unsupported\.empty\(\).*?;",
        "parts": r"checks\.Require\(1 <= tasks\.parts.*?;",
        "tasks": r"checks\.Require\(1 <= tasks\.concurrent.*?;",
        "weight's type": r"checks\.Type\(\"weight.*?;",
        "weight": r"checks\.Shape\(\"weight.*?;",
        "bias' type": r"checks\.Type\(\"bias.*?;",
        "bias": r"checks\.Shape\(\"bias.*?;",
        "workspace's type": r"checks\.Type\(\"workspace.*?;",
        "workspace": r"checks\.Shape\(\"workspace.*?;",
        "requested workspace": r"checks\.Require\(is_requested\(\"workspace_requested.*?;",
    }.items()
}
# Sanitizers, the contract, the fuzzer and assertions report what a removed check would have refused.
COMPLAINT = r"runtime error|contract\.cc:\d+: |takes shapes that no memory has|the type must match the buffer's"


def without_check(name):
    """The file without a check."""
    file, check, _ = MUTATIONS[name]
    source, count = re.subn(check, ";", (build.LIB / file).read_text(), flags=re.DOTALL)
    assert count == 1, f"{file} has changed: it must match {check} once"
    return source


@pytest.mark.parametrize("name", MUTATIONS)
def test_checks_are_in_the_source(name):
    without_check(name)


@pytest.mark.parametrize("name", build.mutations(MUTATIONS, ["rows", "workspace of the CPU"]))
def test_a_removed_check_is_noticed(name, tmp_path):
    """The corpus itself has an input that notices it, so that this does not depend on random mutations."""
    file, _, handlers = MUTATIONS[name]
    source = without_check(name)
    # The folder name is part of the compiler command, so it must depend on the content.
    changed = tmp_path / hashlib.sha256(source.encode()).hexdigest()[:16]
    (changed / "ffi").mkdir(parents=True)
    shutil.copy(build.LIB / "ffi" / handlers, changed / "ffi")
    (changed / file).write_text(source)
    backend = "cpu_contract" if handlers in build.ONLY_ON_CPU else "contract"
    status, output = replay(backend, step=1, mutated=0, changed=changed)
    assert status != 0
    assert re.search(COMPLAINT, output), output
