"""A jax that moves a name which it does not document: the package imports and computes without it.

A program removes one name after the other, for the package and for nothing else, and imports the package anew. It is
one process, because jax takes seconds to import.
"""

import ast
import json
import os
import pathlib
import re
import subprocess
import sys

import jax
import pytest

import jax_dcn
from jax_dcn._primitive import jax_internals

pytestmark = pytest.mark.platforms("cpu")

HELPERS = pathlib.Path(__file__).parent / "helpers"
PRIMITIVES, PARTITIONING, REPLACEABLE, ATTRIBUTES, OPTIONS = (
    jax_internals.PRIMITIVES.entries,
    jax_internals.PARTITIONING.entries,
    jax_internals.REPLACEABLE.entries,
    jax_internals.ATTRIBUTES,
    jax_internals.OPTIONS,
)
NAMES = (*PRIMITIVES, *PARTITIONING, *REPLACEABLE, *ATTRIBUTES, *OPTIONS)
ONE_DEVICE = ("eager", "one device", "shard_map")


@pytest.fixture(scope="module")
def reports():
    """The reports of `run_without_names.py` by the name that is missing, and one without a missing name."""
    names = ("nothing", *NAMES)
    command = [sys.executable, str(HELPERS / "run_without_names.py"), *names]
    flags = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
    environment = os.environ | {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {flags}"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stderr
    return {name: json.loads(line) for name, line in zip(names, done.stdout.splitlines(), strict=True)}


def message(name, consequence):
    versions = jax_internals.TESTED_VERSIONS
    return f"jax {jax.__version__} has no {name}, so {consequence}. jax_dcn was tested with jax {versions}"


REFERENCE = "deform_conv runs the slow jax.numpy form"
EXPLICIT = "deform_conv cannot take arrays that are sharded over an Explicit mesh. Use an Auto mesh instead"
GATHERED = (
    "jax_dcn cannot be partitioned: under jit over several devices each device gathers the operands and computes the "
    "whole result. Use jax.shard_map instead"
)
PERHAPS_GATHERED = (
    "jax_dcn cannot be partitioned: if this computation runs on several devices, the operands may be gathered on each "
    "of them. Use jax.shard_map for several devices"
)


def test_only_the_removed_name_is_missing(reports):
    for name, report in reports.items():
        assert report["missing"] == ([] if name in ("nothing", *ATTRIBUTES, *OPTIONS) else [name])


@pytest.mark.parametrize("name", ["nothing", *NAMES])
def test_one_device_and_shard_map(name, reports):
    for program in ONE_DEVICE:
        report = reports[name][program]
        expected = [message(name, REFERENCE)] if name in PRIMITIVES else []
        if name == jax_internals.AXIS_CONTEXT and program != "shard_map":
            expected = [message(name, PERHAPS_GATHERED)]  # the number of devices is not known
        assert report["error"] is None
        assert report["right"]
        assert report["warnings"] == expected
        assert report["warns here"]
        assert report["kernels"] == (name not in PRIMITIVES)
    assert reports[name]["platform"] == "cpu"


@pytest.mark.parametrize("program", ["several devices", "Explicit mesh"])
@pytest.mark.parametrize("name", ["nothing", *NAMES])
def test_jit_over_several_devices(name, program, reports):
    """It is partitioned, or it gathers the operands with a warning. XLA partitions the reference."""
    report = reports[name][program]
    if name in PRIMITIVES and program == "Explicit mesh":
        assert report["error"] == message(name, EXPLICIT)
        return
    consequences = (
        dict.fromkeys(PRIMITIVES, REFERENCE)
        | dict.fromkeys((*PARTITIONING, jax_internals.HLO_SHARDING), GATHERED)
        | {jax_internals.AXIS_CONTEXT: PERHAPS_GATHERED}
    )
    consequence = consequences.get(name)
    assert report["error"] is None
    assert report["right"]
    assert report["gathered"] == (consequence in (GATHERED, PERHAPS_GATHERED))
    assert report["warnings"] == ([] if consequence is None else [message(name, consequence)])
    assert report["warns here"] == (name != jax_internals.HLO_SHARDING)  # which the partitioner's thread reads


def test_programs_without_annotations_are_not_confused(reports):
    consequence = (
        "programs of the same shapes would be confused in the compilation cache. Set "
        "jax_remove_custom_partitioning_ptr_from_cache_key to False"
    )
    assert reports["jax.extend.mlir.ir"]["cache keys"]["error"] == message("jax.extend.mlir.ir", consequence)


def test_the_first_path_that_exists_gives_the_object():
    names = jax_internals.OptionalNames(
        ("jax.future.ad.Zero", "jax.interpreters.ad.Zero"),  # only the old path exists
        ("jax.lax.add", "jax.numpy.add"),  # both exist
        ("jax.numpy.multiply", "jax.future.mul"),  # only the new path exists
        ("jax.future.moved", "jax.numpy.removed"),
        "jax.numpy.sin",
    )
    assert names.Zero is jax_internals.PRIMITIVES.Zero
    assert names.add is jax.lax.add
    assert names.multiply is jax.numpy.multiply
    assert names.sin is jax.numpy.sin
    assert names.moved is None
    assert names.missing == ("jax.future.moved or jax.numpy.removed",)
    assert names.entries[0] == "jax.future.ad.Zero or jax.interpreters.ad.Zero"


UNDOCUMENTED = re.compile(
    r"_\w+|(jax\._(?!_)\w+|jax\.(experimental|extend|interpreters)|jaxlib)\b.*"
    r"|jax\.core\.(?!(ShapedArray|Tracer)\b).*|jax\.config\.(?!update\b).*"
)


def dotted(node):
    """`a.b.c` of the expression a.b.c; the empty string of any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value)):
        return f"{owner}.{node.attr}"
    return ""


def unguarded(node):
    """The undocumented names of jax that a node of a syntax tree uses directly."""
    match node:
        case ast.Import(names=names):
            found = [name.name for name in names]
        case ast.ImportFrom(module=str(module), names=names):
            found = [f"{module}.{name.name}" for name in names]
        case ast.Attribute(attr=attr, value=owner):
            of_python = attr.endswith("__") or attr in ("_asdict", "_fields", "_replace")  # documented, of named tuples
            private = attr.startswith("_") and not of_python and dotted(owner) not in ("self", "cls")
            found = [attr] if private else [dotted(node)]
        case _:
            return []
    return [name for name in found if UNDOCUMENTED.fullmatch(name)]


def test_all_undocumented_names_are_guarded():
    """Guards against: a name that is used without a guard, and a guard that the tests above do not remove."""
    direct, by_path, own = set(), set(), set()
    for source in pathlib.Path(jax_dcn.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            own.update({node.name} if isinstance(node, ast.FunctionDef) else ())
            direct.update((source.name, name) for name in unguarded(node))
            if isinstance(node, ast.Constant) and str(node.value).startswith("jax."):
                by_path.update({node.value} if UNDOCUMENTED.fullmatch(node.value) else ())
    assert {(source, name) for source, name in direct if name not in own} == set()
    assert by_path == {path for entry in (*PRIMITIVES, *PARTITIONING, *REPLACEABLE) for path in entry.split(" or ")}
