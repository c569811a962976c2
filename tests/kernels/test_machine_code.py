"""The built module of the CUDA kernels has machine code, or PTX, for every GPU."""

import pathlib
import re

import pytest

from benchmarks.support.cuda_tools import absent, read
from jax_dcn._primitive import extension

pytestmark = [pytest.mark.platforms("cpu"), pytest.mark.slow]


@pytest.fixture(scope="module")
def embedded():
    """The architectures of the machine code and of the PTX in the module, as numbers such as 90."""
    if "cuda" not in extension.modules or absent("cuobjdump"):
        pytest.skip(absent("cuobjdump") or "jax_dcn was built without its CUDA kernels")
    listed = (read("cuobjdump", option, extension.modules["cuda"].__file__) for option in ("--list-elf", "--list-ptx"))
    code, ptx = ({int(number) for number in re.findall(r"\.sm_(\d+)\.", text)} for text in listed)
    if len(code) == 1:
        pytest.skip(f"the module was built for sm_{min(code)} only")
    return code, ptx


# Jetson's GPUs do not run machine code of the others: CUDA C++ programming guide, "Binary Compatibility".
JETSON = (87, 110)


PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "building.md").read_text()
FIRST_COLUMN = re.findall(r"^\| (sm_.*?) \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize("target", [int(number) for number in re.findall(r"\d+", " ".join(FIRST_COLUMN))])
def test_every_gpu_has_machine_code_or_ptx(target, embedded):
    code, ptx = embedded
    runs_code = target not in JETSON and any(c // 10 == target // 10 and c <= target for c in code)
    assert runs_code or any(p <= target for p in ptx)
    assert runs_code or target in JETSON  # the others do not wait for the driver's compiler
