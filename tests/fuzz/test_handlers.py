"""Replays the fuzzer's corpus and mutations of it under sanitizers: each call fails cleanly or writes its results.

corpus.bin contains the inputs that gave libFuzzer its coverage, each after its length in two bytes.
"""

import hashlib
import pathlib
import re
import shutil
import subprocess

import pytest

from tests.kernels import build

pytestmark = [pytest.mark.platforms("cpu"), pytest.mark.usefixtures("compiler")]

CORPUS = pathlib.Path(__file__).parent / "corpus.bin"
# Backend: (N, mutated), where every N-th input of the corpus is replayed, and then so many mutated inputs.
RUNS = {"contract": (1, 20_000), "cpu_contract": (1, 20_000), "cpu": (1, 5_000), "cuda": (8, 0)}


@pytest.fixture(scope="module")
def compiler():
    if shutil.which(build.COMPILER) is None or not build.has("memory"):
        pytest.skip(f"the fuzzer is built with {build.COMPILER} and its sanitizers")


def replay(backend, changed=build.LIB, more=1):
    step, mutated = RUNS[backend]
    command = [build.fuzzer(backend, changed=changed), CORPUS, str(step), str(more * mutated)]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return result.returncode, result.stdout


@pytest.mark.parametrize("backend", RUNS)
def test_any_call_is_refused_or_succeeds(backend):
    status, output = replay(backend)
    assert status == 0, output
    assert output.endswith("changed ones are done\n")


# The file and pattern of a check that is removed, and a file of handlers that compiles it.
MISTAKES = {
    "workspace": ("deform_conv.cc", r"checks\.Shape\(\"workspace.*?;", "deform_conv.cc"),
    "rows": ("conv_operands.h", r"checks\.FitsInt32\(\"the number of the output's rows.*?;", "deform_conv.cc"),
    "contributions": (
        "fused_limits.h",
        r"checks\.FitsInt32\(\"the number of contributions.*?;",
        "deform_conv_fused.cc",
    ),
    "vectors": ("fused_limits.h", r"checks\.Require\(vectors <= FusedLimits::kMaxVectors.*?;", "deform_conv_fused.cc"),
    "rois": ("roi_pool.cc", r"checks\.Shape\(\"rois.*?;", "roi_pool.cc"),
    "workspace of the CPU": (
        "fused_convolution.cc",
        r"if \(checks\.ok\(\)\) checks\.Shape\(\"workspace.*?;",
        "fused_convolution.cc",
    ),
    "workspace that is requested": (
        "fused_convolution.cc",
        r"checks\.Require\(checks\.Attribute\(attributes, \"workspace_requested.*?;",
        "fused_convolution.cc",
    ),
    "pixels of the CPU": (
        "fused_convolution.cc",
        r"checks\.FitsInt32\(\"the number of an image's pixels.*?;",
        "fused_convolution.cc",
    ),
    "channels and features of the CPU": (
        "fused_convolution.cc",
        r"checks\.Require\(sizes\.channels > 0 && product\.features > 0.*?;",
        "fused_convolution.cc",
    ),
}


@pytest.mark.parametrize("name", build.mistakes(MISTAKES, ["rows", "workspace of the CPU"]))
def test_a_removed_check_is_noticed(name, tmp_path):
    file, check, handlers = MISTAKES[name]
    source, count = re.subn(check, ";", (build.LIB / "ffi" / file).read_text(), flags=re.DOTALL)
    assert count == 1, f"{file} has changed: it must match {check} once"
    # The folder name is part of the compiler command, so it must depend on the content.
    changed = tmp_path / hashlib.sha256(source.encode()).hexdigest()[:16]
    (changed / "ffi").mkdir(parents=True)
    shutil.copy(build.LIB / "ffi" / handlers, changed / "ffi")
    (changed / "ffi" / file).write_text(source)
    status, output = replay("cpu_contract" if handlers in build.ONLY_ON_CPU else "contract", changed, more=20)
    assert status != 0
    assert re.search(r"runtime error|contract\.cc:\d+: |takes shapes that no memory has", output), output
