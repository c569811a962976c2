"""The code in the documentation runs, and the commands, options, files and links that it names exist.

The errors that its pages quote are raised: in examples, and by `test_troubleshooting`.
"""

import ast
import doctest
import functools
import importlib.util
import itertools
import pathlib
import re
import runpy
import shlex
import subprocess
import tomllib
import types

import jax
import pytest

import jax_dcn
from tests.helpers.pages import ERRORS, FENCED, PAGES, ROOT, blocks, text_of
from tests.helpers.slow import slow_unless

TREE = "docs/contributing.md"
KERNELS = "docs/kernels.md"
NEEDED = {"docs/pictures.md": ["matplotlib"], "docs/interop.md": ["onnxruntime", "safetensors"]}
PEERS = {"detectron2", "equinox", "mmcv", "mxnet", "paddle", "torch", "torchvision"}

every_page = pytest.mark.parametrize("page", PAGES)


@every_page
def test_no_block_escapes(page):
    """Every code block is tested, except directives of Sphinx, which Sphinx checks. Indented text contains no code."""
    assert len(re.findall(r"^ *(?:```|~~~)", text_of(page), re.MULTILINE)) == 2 * len(blocks(page))
    tested = {"python", "sh"} | ({"text"} if page in (TREE, ERRORS, KERNELS) else set())
    assert {block.language for block in blocks(page) if not block.language.startswith("{")} <= tested
    assert not re.search(r"^ {4,}(>>>|\$|(import|from|make|pip|python)\b)", FENCED.sub("", text_of(page)), re.MULTILINE)


def peers_of(block):
    """The modules of other libraries that a block imports."""
    statements = ast.walk(ast.parse(block.text)) if ">>>" not in block.text else ()
    names = set()
    for statement in statements:
        if isinstance(statement, ast.Import):
            names |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            names.add(statement.module)
    return {name for name in names if name.split(".")[0] in PEERS}


@pytest.fixture
def whole_errors():
    """Turns off jax's note about hidden frames, which doctest would take for the message."""
    usual = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    yield
    jax.config.update("jax_traceback_filtering", usual)


# The pages whose programs take longest to compile.
SLOW = tuple(
    f"docs/{name}.md"
    for name in ["aggregation", "interop", "instead_of", "pictures", "sampling", "scaling", "training"]
)


@pytest.mark.usefixtures("whole_errors")
@pytest.mark.parametrize("page", [slow_unless(page not in SLOW, page) for page in PAGES[1:]])
def test_python(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # pages write files
    run(page)


@pytest.mark.thorough
@pytest.mark.platforms("cpu")
def test_the_pictures_are_made(tmp_path):
    """The pictures that the page shows, except one of a detector that trains for minutes."""
    pytest.importorskip("matplotlib")
    main = runpy.run_path(str(ROOT / "docs/images/make.py"))["main"]
    main(["--steps", "0", "--out", str(tmp_path)])
    shown = re.findall(r"\(images/(.*?)\)", (ROOT / "docs/pictures.md").read_text())
    assert {path.name for path in tmp_path.iterdir()} == set(shown) - {"bins.png"}
    assert all((ROOT / "docs/images" / name).exists() for name in shown)


def test_readme():
    names = run("README.md")
    assert names["y"].shape == (2, 32, 32, 8)


BESIDE = {(page, *sorted(peers_of(block))) for page in PAGES for block in blocks(page, "python") if peers_of(block)}


@pytest.mark.parametrize("page, peers", [(page, peers) for page, *peers in sorted(BESIDE)])
def test_python_beside_other_libraries(page, peers, tmp_path, monkeypatch):
    """Results are compared with those of other libraries, if installed; otherwise their code is only parsed."""
    monkeypatch.chdir(tmp_path)  # pages write files
    for peer in peers:
        pytest.importorskip(peer, exc_type=ImportError)  # also if its compiled part is missing
    run(page, peers)


def run(page, peers=()):
    """Runs the blocks of a page in order, without those of libraries other than `peers`, and returns their names."""
    if page == "docs/scaling.md" and jax.device_count() < 8:
        pytest.skip("that page wants eight devices")
    for package in NEEDED.get(page, ()):
        pytest.importorskip(package)
    names = {"__name__": page}
    for block in blocks(page, "python"):
        if ">>>" in block.text:
            test = doctest.DocTestParser().get_doctest(block.text, {}, page, page, block.line)
            test.globs = names  # not a copy, or functions would not see what later blocks do
            assert doctest.DocTestRunner().run(test, clear_globs=False).failed == 0
        elif peers_of(block) <= set(peers):
            exec(compile("\n" * block.line + block.text, page, "exec"), names)
    return names


def test_api():
    """Everything public is on the page."""
    listed = set(re.findall(r":: jax_dcn\.(\S+)", text_of("docs/api.md")))
    public = {name for name in jax_dcn.__all__ if not isinstance(getattr(jax_dcn, name), types.ModuleType)}
    public |= {f"interop.{name}" for name in jax_dcn.interop.__all__} | {f"viz.{name}" for name in jax_dcn.viz.__all__}
    assert public <= listed, public - listed


@every_page
def test_commands(page):
    for block in blocks(page, "sh"):
        subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
    for variable in re.findall(r"\bJAX_DCN_\w+", text_of(page)):
        assert variable in text_of("CMakeLists.txt") + text_of("lib/cpu/instruction_sets.cc"), variable
    in_text = re.findall(r"`((?:make|pip install|python -m) [^`]+)`", FENCED.sub("", text_of(page)))
    for command in itertools.chain(in_text, *(commands_of(block.text) for block in blocks(page, "sh"))):
        check(command)


def commands_of(script):
    """The simple commands of a script, without the loops around them and the variables set for them."""
    script = re.sub(r"(^|\s)#.*", "", script).replace("\\\n", " ")
    parts = [re.sub(r"^\s*((do|done)\b)?\s*(\w+=\S*\s+)*", "", part) for part in re.split(r"&&|[;&\n]", script)]
    return [part for part in parts if part and not part.startswith(("for ", "wait"))]


def check(command):
    """Checks that a command's modules, options, targets of make, files, tests, extras and CMake options exist."""
    program, *words = shlex.split(command)
    program = pathlib.Path(program).name
    if program == "make":
        known = re.findall(r"^([\w-]+)(?::| \?=)", text_of("Makefile"), re.MULTILINE)
        assert {word.split("=")[0] for word in words} <= set(known), command
    elif program == "pip":
        check_installation(words, command)
    elif program.startswith("python") and words[0] == "-m":
        check_module(words[1], words[2:], command)
    else:
        assert command == "nvcc --version", command


def check_installation(words, command):
    extras = tomllib.loads(text_of("pyproject.toml"))["project"]["optional-dependencies"]
    for word in words:
        if define := re.match(r"-Ccmake\.define\.(\w+)=", word):
            assert define[1] in text_of("CMakeLists.txt"), command
        elif ours := re.match(r"(?:\.|jax_dcn)\[(.*)\]", word):
            assert set(ours[1].split(",")) <= extras.keys(), command


def check_module(module, words, command):
    assert importlib.util.find_spec(module), command
    package = ROOT / module.split(".")[0]
    source = "".join(path.read_text() for path in package.rglob("*.py"))
    for word in words:
        path, *names = word.split("::")
        assert "/" not in path or (ROOT / path).exists(), command
        assert all(f"def {name}(" in text_of(path) for name in names), command
        assert not (source and word.startswith("--")) or word == "--help" or f'"{word}"' in source, command


@every_page
def test_links(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        path, _, anchor = target.partition("#")
        if not target.startswith("https:"):
            linked = (ROOT / page).parent / path if path else ROOT / page
            assert linked.exists(), target
            assert not anchor or anchor in anchors(linked.read_text()), target


def anchors(text):
    headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]


def test_tree():
    """The tree names every folder of the repository, and nothing that does not exist."""
    folders = {folder for path in files() for folder in path.parents} - {pathlib.PurePath(".")}
    for paths in tree():
        assert folders & paths, f"{paths} are missing from the repository"
    missing = folders - set.union(*tree())
    assert not missing, f"{sorted(map(str, missing))} are missing from {TREE}"


def tree():
    """For each name in the tree, its path in each of the folders on the line above it."""
    (block,) = blocks(TREE, "text")
    parents = {0: [pathlib.PurePath(".")]}
    for line in block.text.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        names = re.match(r"\S+(?: \S+)*", line.strip())[0].split()
        for name in names:
            yield {parent / name for parent in parents[depth]}
        parents[depth + 1] = [parent / name for parent in parents[depth] for name in names if name.endswith("/")]


def test_files_in_text():
    """The files that the page for contributors names exist."""
    for name in re.findall(r"`((?:jax_dcn|lib|tests|docs|benchmarks|examples)/[\w/.]+)`", text_of(TREE)):
        assert (ROOT / name).exists(), name


@functools.cache
def files():
    """The repository's files, relative to it, also those that are not committed yet."""
    if not (ROOT / ".git").exists():
        pytest.skip("sources without git")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [pathlib.PurePath(path) for path in listed if (ROOT / path).exists()]
