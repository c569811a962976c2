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
# The backend, and how many mutated inputs are replayed after those of the corpus. Each backend is a program that takes
# a minute to compile.
RUNS = [("cpu_contract", 2_000)]
THOROUGH_RUNS = [("contract", 20_000), ("cpu_contract", 20_000), ("cpu", 5_000), ("cpu_portable", 500), ("cuda", 0)]


@pytest.fixture(scope="module")
def compiler():
    if shutil.which(build.COMPILER) is None or not build.has("memory"):
        pytest.skip(f"the fuzzer is built with {build.COMPILER} and its sanitizers")


def replay(backend, mutated, changed=build.LIB):
    if not backend.startswith("cpu") and executed_ptx.missing():  # the handlers include the CUDA toolkit's headers
        pytest.skip(executed_ptx.missing())
    command = [build.fuzzer(backend, changed=changed), CORPUS, str(mutated)]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return result.returncode, result.stdout


@pytest.mark.parametrize(
    "backend, mutated", [*RUNS, *(pytest.param(*run, marks=pytest.mark.thorough) for run in THOROUGH_RUNS)]
)
def test_any_call_is_refused_or_succeeds(backend, mutated):
    status, output = replay(backend, mutated)
    assert status == 0, output
    assert output.endswith("changed ones are done\n")


# The start of a statement that checks an operand or attribute, its file in lib/, and the file that compiles it.
MUTATIONS = {
    "workspace": ('Shape("workspace', "deform_conv/handlers_cuda.cc"),
    "sorted samples": ('Shape("samples", samples', "deform_conv/handlers_cuda.cc"),
    "starts of cells": ('Shape("cell_start", cell_start', "deform_conv/handlers_cuda.cc"),
    "a pixel's bytes": ("FitsInt32(\"the number of a pixel's bytes", "deform_conv/handlers_cuda.cc"),
    "samples of a rounded gradient": ("Require(is_rounded ? ", "deform_conv/handlers_cuda.cc"),
    "start of the part": ('Shape("start"', "deform_conv/handlers_cuda.cc"),
    "images of samples": ("Require(sizes.images <= sizes.images_of_x && ", "deform_conv/handlers_cuda.cc"),
    "rows": ("FitsInt32(\"the number of the output's rows", "deform_conv/operands.h", "deform_conv/handlers.cc"),
    "rois": ('Shape("rois', "roi_pool/handlers.cc"),
    "points of a sampling": (
        'Shape("locations", locations, {sizes.batches, sizes.points, dims}',
        "sampling/handlers.cc",
    ),
    "axes of a cubic sampling": ("Require(sizes.rules.interpolation", "sampling/handlers.cc"),
    "bytes of a sampling's pixel": ("FitsInt32(\"the number of a pixel's bytes", "sampling/handlers.cc"),
    "pixels of a sampling": ("FitsInt32(\"the number of an image's pixels", "sampling/handlers.cc"),
    "samples": ('Shape("out', "sampling/handlers.cc"),
    "groups of the CPU": ("Require(product.features % ", "deform_conv/handlers_cpu.cc"),
    "rules of the CPU": ("Require(unsupported.empty()", "deform_conv/handlers_cpu.cc"),
    "splits of the CPU": ("Require(1 <= division.num_splits", "deform_conv/handlers_cpu.cc"),
    "planes of the CPU": ("Require(1 <= division.num_planes", "deform_conv/handlers_cpu.cc"),
    "weight's type of the CPU": ('Type("weight', "deform_conv/handlers_cpu.cc"),
    "weight of the CPU": ('Shape("weight', "deform_conv/handlers_cpu.cc"),
    "bias' type of the CPU": ('Type("bias', "deform_conv/handlers_cpu.cc"),
    "bias of the CPU": ('Shape("bias', "deform_conv/handlers_cpu.cc"),
    "workspace's type of the CPU": ('Type("workspace', "deform_conv/handlers_cpu.cc"),
    "workspace of the CPU": ('Shape("workspace', "deform_conv/handlers_cpu.cc"),
    "requested workspace of the CPU": ('Require(is_requested("workspace_requested', "deform_conv/handlers_cpu.cc"),
}
# Sanitizers, the contract, the fuzzer and assertions report what a removed check would have refused.
COMPLAINT = r"runtime error|contract\.cc:\d+: |takes shapes that no memory has|must match the underlying buffer dtype"


def without_check(name):
    """The text of the file without a check."""
    check, file, *_ = MUTATIONS[name]
    statement = rf"checks\.{re.escape(check)}.*?;"
    source, count = re.subn(statement, ";", (build.LIB / file).read_text(), flags=re.DOTALL)
    assert count == 1, f"{file} has changed: it must have the check {check} once"
    return source


def test_checks_are_in_the_source():
    for name in MUTATIONS:
        without_check(name)


@pytest.mark.parametrize("name", build.mutations(MUTATIONS, always=[]))
def test_a_removed_check_is_noticed(name, tmp_path):
    """The corpus itself has an input that notices it, so that this does not depend on random mutations."""
    _, file, *_ = MUTATIONS[name]
    handlers = MUTATIONS[name][-1]
    source = without_check(name)
    # The folder name is part of the compiler command, so it must depend on the content.
    changed = tmp_path / hashlib.sha256(source.encode()).hexdigest()[:16]
    (changed / file).parent.mkdir(parents=True)
    shutil.copy(build.LIB / handlers, changed / handlers)
    (changed / file).write_text(source)
    backend = "cpu_contract" if build.LIB / handlers not in build.handlers("cuda") else "contract"
    status, output = replay(backend, mutated=0, changed=changed)
    assert status != 0
    assert re.search(COMPLAINT, output), output
