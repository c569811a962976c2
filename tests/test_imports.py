"""The parts of the repository depend on each other in one direction only."""

import ast
import re

import pytest

from tests.helpers.pages import ROOT

pytestmark = pytest.mark.platforms("cpu")

LAYERS = ("jax_dcn._layers", "jax_dcn.linen", "jax_dcn.nnx")
BENCHMARK_LAYERS = ("support", "lowering", "baselines", "measurements", "reports")

# The package knows none of the others, examples show only what users have, and benchmarks need no tests. The packages
# of jax_dcn/ and of benchmarks/ are layers, and each layer imports only the ones before it. Operators do not know each
# other.
FORBIDDEN = {
    "jax_dcn": ("benchmarks", "examples", "tests"),
    "jax_dcn/_primitive": ("jax_dcn._operators", *LAYERS),
    "jax_dcn/_operators": LAYERS,
    "jax_dcn/_operators/assignment": tuple(
        f"jax_dcn._operators.{name}" for name in ("aggregation", "deform_conv", "roi_pool", "sampling")
    ),
    "jax_dcn/_operators/aggregation": ("jax_dcn._operators.deform_conv", "jax_dcn._operators.roi_pool"),
    "jax_dcn/_operators/deform_conv": ("jax_dcn._operators.aggregation", "jax_dcn._operators.roi_pool"),
    "jax_dcn/_operators/roi_pool": ("jax_dcn._operators.aggregation", "jax_dcn._operators.deform_conv"),
    "jax_dcn/_layers": ("jax_dcn.linen", "jax_dcn.nnx"),
    "jax_dcn/linen": ("jax_dcn.nnx",),
    "jax_dcn/nnx": ("jax_dcn.linen",),
    "examples": ("benchmarks", "tests"),
    "benchmarks": ("tests",),
    **{
        f"benchmarks/{name}": tuple(f"benchmarks.{later}" for later in BENCHMARK_LAYERS[number + 1 :])
        for number, name in enumerate(BENCHMARK_LAYERS[:-1])
    },
}


def imported_modules(path):
    """The absolute name of everything that a file imports, wherever the statement is."""
    package = path.relative_to(ROOT).parent.parts
    for statement in ast.walk(ast.parse(path.read_text())):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            base = ".".join(package[: len(package) - statement.level + 1]) if statement.level else ""
            module = ".".join(filter(None, (base, statement.module)))
            yield from (f"{module}.{alias.name}" for alias in statement.names)


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_imports_go_one_way(folder):
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths
    for path in paths:
        for module in imported_modules(path):
            assert not f"{module}.".startswith(tuple(f"{name}." for name in FORBIDDEN[folder])), f"{path}: {module}"


UNDOCUMENTED = re.compile(
    r"(jax\._(?!_)\w+|jax\.(experimental|extend|interpreters)|jaxlib)\b.*|jax\.core\.(?!(ShapedArray|Tracer)\b).*"
    r"|jax\.config\.(?!update\b).*"
)


def own_names(tree):
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def private_attributes(tree):
    """The attributes with an underscore, except those of `self` and `cls` and the documented ones of named tuples."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            yield from re.findall(r"^_(?!asdict|fields|replace)\w+(?<!__)$", node.attr)


def test_undocumented_names_of_jax_are_imported_in_one_module():
    """Guards against: an unsupported release of jax that fails without the message of `jax_internals`."""
    folder = ROOT / "jax_dcn"
    paths = {*folder.rglob("*.py")} - {folder / "_primitive" / name for name in ("jax_internals.py", "meshes.py")}
    trees = {path: ast.parse(path.read_text()) for path in paths}
    own = set().union(*map(own_names, trees.values()))
    for path, tree in trees.items():
        used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not [*filter(UNDOCUMENTED.fullmatch, used.union(imported_modules(path)))], path
        assert {*private_attributes(tree)} <= own, path
