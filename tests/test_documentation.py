"""The documentation's code runs; what it says of commands, options, files and errors is so."""

import ast
import doctest
import importlib.util
import itertools
import pathlib
import re
import shlex
import subprocess
import tomllib
from typing import NamedTuple

import jax
import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGES = ["README.md", *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/*.md")))]
PEERS = {"detectron2", "mmcv", "mxnet", "paddle", "torch", "torchvision"}


class Block(NamedTuple):
    line: int
    language: str
    text: str


def text_of(page):
    return (ROOT / page).read_text()


def blocks(page, *languages):
    text = text_of(page)
    found = re.finditer(r"^```(.*)\n((?:.*\n)*?)```$", text, re.MULTILINE)
    every = [Block(text.count("\n", 0, match.start(2)), *match.groups()) for match in found]
    return [block for block in every if not languages or block.language in languages]


def peers_of(block):
    """The other libraries that a block of Python imports."""
    nodes = list(ast.walk(ast.parse(block.text))) if ">>>" not in block.text else []
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    return PEERS & {name.split(".")[0] for name in names}


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_of_a_kind_that_is_tested(page):
    """Directives of Sphinx, in braces, are so by `make docs`, and formulas are indented."""
    fences = re.findall(r"^ *(?:```|~~~)", text_of(page), re.MULTILINE)
    assert len(fences) == 2 * len(blocks(page))
    outputs = ("text",) if page in (*TREES, ERRORS) else ()
    for block in blocks(page):
        assert block.language in ("python", "sh", *outputs) or re.fullmatch(r"\{.+", block.language), block
    for line in re.findall(r"^ {4}.*", re.sub(r"^```(.*\n)*?```$", "", text_of(page), flags=re.MULTILINE), re.MULTILINE):
        assert not re.match(r" +(>>>|\$|make |pip |python |import )", line), line


@pytest.mark.parametrize("page", PAGES)
def test_python(page):
    """What other libraries compute is left out."""
    run(page, lambda block: not peers_of(block))


@pytest.mark.parametrize(
    "page, peers", sorted({(page, peers) for page in PAGES for b in blocks(page, "python") if (peers := (*sorted(peers_of(b)),))})
)
def test_python_beside_other_libraries(page, peers):
    for peer in peers:
        pytest.importorskip(peer)
    run(page, lambda block: peers_of(block) <= set(peers))


def run(page, wanted):
    if page == "docs/scaling.md" and jax.device_count() < 8:
        pytest.skip("that page wants eight devices")
    names = {"__name__": page}
    for block in filter(wanted, blocks(page, "python")):
        if ">>>" in block.text:
            test = doctest.DocTestParser().get_doctest(block.text, names, page, page, block.line)
            test.globs = names  # not a copy, or functions would not see what later blocks do
            assert doctest.DocTestRunner().run(test, clear_globs=False).failed == 0
        else:
            exec(compile("\n" * block.line + block.text, page, "exec"), names)
    return names


def test_readme():
    names = run("README.md", lambda block: True)
    assert names["y"].shape == (2, 32, 32, 8)
    assert names["restored"].platforms == ("cpu", "cuda", "tpu")


@pytest.mark.parametrize("page", PAGES)
def test_commands(page):
    for block in blocks(page, "sh"):
        subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
    in_text = re.findall(r"`((?:make|pip install|python -m) [^`]+)`", text_of(page))
    for command in itertools.chain(in_text, *(commands(block.text) for block in blocks(page, "sh"))):
        check_command(command)


def commands(script):
    """The simple commands of a script."""
    script = re.sub(r"(^|\s)#.*", "", script).replace("\\\n", " ")
    parts = re.split(r"&&|\|\||[;|\n&]", script)
    parts = (re.sub(r"^\s*(do\b|done\b|then\b|fi\b)?\s*(\w+=\S*\s+)*", "", part).strip() for part in parts)
    return [part for part in parts if part and not re.match(r"(for|if|wait|export|\w+=)", part)]


def check_command(command):
    program, *words = shlex.split(command, comments=True)
    if program == "make":
        for word in words:
            target = rf"^{word.split('=')[0]} \?=" if "=" in word else rf"^{word}:"
            assert re.search(target, text_of("Makefile"), re.MULTILINE), command
    elif pathlib.Path(program).name in ("python", "python3") and words[0] == "-m":
        check_module(words[1], words[2:], command)
    elif program == "pip":
        check_module("pip", words, command)
    else:
        assert program in ("cd", "nvcc", "nvidia-smi", "which"), command


def check_module(module, words, command):
    assert module == "pip" or importlib.util.find_spec(module), command
    package = module.split(".")[0]
    if module == "pip":
        for word in words:
            if define := re.match(r"-Ccmake\.define\.(\w+)", word):
                assert define[1] in text_of("CMakeLists.txt"), command
            elif extras := re.match(r"(?:\.|jax_dcn)\[(.*)\]", word):
                optional = tomllib.loads(text_of("pyproject.toml"))["project"]["optional-dependencies"]
                assert set(extras[1].split(",")) <= optional.keys(), command
    elif package == "pytest":
        for word in words:
            path, *names = word.split("::")
            assert "/" not in path or (ROOT / path).exists(), command
            assert all(f"def {name.split('[')[0]}(" in text_of(path) for name in names), command
    elif (ROOT / package).is_dir():
        source = "".join(path.read_text() for path in (ROOT / package).rglob("*.py"))
        for word in words:
            assert not word.startswith("--") or word == "--help" or f'"{word.split("=")[0]}"' in source, command


@pytest.mark.parametrize("page", PAGES)
def test_links(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        path, _, anchor = target.partition("#")
        if not re.match(r"https?:", target):
            file = (ROOT / page).parent / path if path else ROOT / page
            assert file.exists(), target
            headings = re.findall(r"^#+ (.*)", file.read_text(), re.MULTILINE) if anchor else ()
            assert not anchor or anchor in [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings], target


TREES = ("README.md", "docs/contributing.md")


@pytest.mark.parametrize("page", TREES)
def test_trees(page):
    """Names of files and folders, behind at most one name and before what is said of them."""
    for block in blocks(page, "text"):
        names = re.findall(r"(?:^|(?<=\s))[\w/]+(?:/|\.(?:h|cc|cu|py|md|toml|txt|cmake))(?=\s|$)", block.text)
        assert len(names) > 10
        for name in names:
            assert any(path.match(name.rstrip("/")) for path in tracked()), name


def tracked():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return {folder for file in map(pathlib.Path, files) for folder in (file, *file.parents)}


ERRORS = "docs/troubleshooting.md"
