"""No function or variable that files share is compiled for an instruction set that a processor may not have.

An inline function or a template is compiled in each file that uses it, and the linker keeps one of these copies for the
whole module. If it was compiled for AVX-512, a processor without AVX-512 would stop there, whatever kernels it runs.
"""

import hashlib
import platform
import re
import shutil
import subprocess

import pytest

from . import build

FILES = ["avx2", "avx512", "avx512_bf16", "amx"]

pytestmark = [
    pytest.mark.platforms("cpu"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="these files are empty elsewhere"),
    pytest.mark.skipif(
        not all(map(shutil.which, (build.COMPILER, "nm", "objdump"))), reason="it needs a compiler and binutils"
    ),
]


def read(*command):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout


def weak_symbols(compiled):
    """The files that define the symbols of which the linker keeps one copy, by name."""
    # `DW.ref.__gxx_personality_v0` has no file. The compiler makes it itself, the same in all files.
    return dict(re.findall(r"^\S+ [WVu] (.*)\t(.*):\d+$", read("nm", "-C", "-l", compiled), re.MULTILINE))


def files_compiled_for_a_target(preprocessed):
    """Those between the pragmas of the file itself, which come after all others."""
    target = preprocessed.rpartition("#pragma GCC push_options")[2].partition("#pragma GCC pop_options")[0]
    return set(re.findall(r'^# \d+ "([^"<]+)"', target, re.MULTILINE))


def functions_with_avx(compiled):
    """Names of all instructions of AVX and later vector extensions begin with v."""
    functions = re.split(r"^[0-9a-f]+ <(.*)>:$", read("objdump", "-d", "-C", compiled), flags=re.MULTILINE)
    return {name for name, code in zip(functions[1::2], functions[2::2], strict=True) if re.search(r"\tv\w+ ", code)}


def shared_code_for_a_target(name, folder=build.CPU, flags=()):
    preprocessed, compiled = build.cpu_fused_file(name, folder, flags)
    files, avx = files_compiled_for_a_target(preprocessed.read_text()), functions_with_avx(compiled)
    assert files and avx
    return {symbol for symbol, file in weak_symbols(compiled).items() if file in files or symbol in avx}


@pytest.mark.parametrize("flags", [[], pytest.param(["-O3"], marks=pytest.mark.thorough)], ids=" ".join)
@pytest.mark.parametrize("name", FILES)
def test_shared_code_is_compiled_for_every_processor(name, flags):
    assert shared_code_for_a_target(name, flags=flags) == set()


@pytest.mark.parametrize(
    "definition", ["inline int planted(int number) { return 2 * number; }", "inline int planted = kLanes;"]
)
def test_a_definition_without_internal_linkage_is_found(definition, tmp_path):
    source = (build.CPU / "fused" / "vectors.h").read_text()
    source += f"\n}}  // namespace\n__attribute__((used)) {definition}\nnamespace {{\n"
    # The folder name is part of the compiler command, so it must depend on the content.
    folder = tmp_path / hashlib.sha256(source.encode()).hexdigest()[:16]
    shutil.copytree(build.CPU, folder)
    (folder / "fused" / "vectors.h").write_text(source)
    assert [symbol.partition("(")[0] for symbol in shared_code_for_a_target("avx2", folder)] == ["dcn::planted"]


def test_templates_compiled_for_an_instruction_set_are_found():
    """A compiler option, unlike the pragmas, applies to the templates of other files, too."""
    assert shared_code_for_a_target("avx512", flags=["-mavx512f"])
