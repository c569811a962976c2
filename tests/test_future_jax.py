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

pytestmark = [pytest.mark.platforms("cpu"), pytest.mark.thorough]

HELPERS = pathlib.Path(__file__).parent / "helpers"
PRIMITIVES, PARTITIONING, REPLACEABLE = (
    group.entries for group in (jax_internals.PRIMITIVES, jax_internals.PARTITIONING, jax_internals.REPLACEABLE)
)
SEVERAL_DEVICES = ("several devices", "Explicit mesh")
PROGRAMS = ("eager", "one device", "shard_map", *SEVERAL_DEVICES)
# The names of a group have one fallback, so all programs run without the first one of each group.
RUNS = dict.fromkeys(("nothing", *REPLACEABLE, *jax_internals.ATTRIBUTES), PROGRAMS)
RUNS |= dict.fromkeys(jax_internals.OPTIONS, ("one device", "several devices"))
RUNS |= dict.fromkeys(PRIMITIVES, ("eager",)) | {PRIMITIVES[0]: PROGRAMS}
RUNS |= dict.fromkeys(PARTITIONING, ("several devices",)) | {PARTITIONING[0]: PROGRAMS}


@pytest.fixture(scope="module")
def reports():
    """The reports of `run_without_names.py` by the name that is missing, and one without a missing name."""
    command = [sys.executable, str(HELPERS / "run_without_names.py"), json.dumps(RUNS)]
    flags = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
    environment = os.environ | {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {flags}"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stderr
    return {name: json.loads(line) for name, line in zip(RUNS, done.stdout.splitlines(), strict=True)}


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


def consequence_of(name, program):
    """What the warning says, if there is one. Without the axis context, the number of devices is not known."""
    if name in PRIMITIVES:
        return REFERENCE
    if name == jax_internals.AXIS_CONTEXT:
        return None if program == "shard_map" else PERHAPS_GATHERED
    needs = (*PARTITIONING, jax_internals.HLO_SHARDING)
    return GATHERED if program in SEVERAL_DEVICES and name in needs else None


def test_only_the_removed_name_is_missing(reports):
    groups = (*PRIMITIVES, *PARTITIONING, *REPLACEABLE)
    for name, report in reports.items():
        assert report["missing"] == ([name] if name in groups else [])
        assert report["platform"] == "cpu"


@pytest.mark.parametrize("name, program", [(name, program) for name in RUNS for program in RUNS[name]])
def test_programs(name, program, reports):
    """Over several devices a program is partitioned, or it gathers the operands. XLA partitions the reference."""
    report = reports[name][program]
    if name in PRIMITIVES and program == "Explicit mesh":
        assert report["error"] == message(name, EXPLICIT)
        return
    consequence = consequence_of(name, program)
    is_split = program in SEVERAL_DEVICES
    assert report["error"] is None
    assert report["right"]
    assert report["warnings"] == ([] if consequence is None else [message(name, consequence)])
    assert report["kernels"] == (name not in PRIMITIVES)
    assert report["gathered"] == (is_split and consequence in (GATHERED, PERHAPS_GATHERED))
    # The partitioner's thread reads the sharding.
    assert report["warns here"] != (is_split and name == jax_internals.HLO_SHARDING)


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
