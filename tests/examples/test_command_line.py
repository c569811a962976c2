"""The help of commands, their warnings, and compiled programs that they keep for later starts."""

import logging
import os
import re
import subprocess
import sys
from dataclasses import fields

import pytest

from examples.aliked import train as aliked
from examples.detr import train as detr
from examples.library.command_line import Parser
from examples.rcnn import train as rcnn

pytestmark = pytest.mark.platforms("cpu")

COMMAND = """
import jax
import jax.numpy as jnp
import jax_dcn
from examples.library.command_line import Parser

Parser("command", "A command.").parse_args()
image = jnp.arange(16.0).reshape(4, 4, 1)
grid = jnp.linspace(-0.9, 0.9, 18).reshape(3, 3, 2)
print(jax.jit(jax.grad(lambda grid: jnp.square(jax_dcn.grid_sample(image, grid)).sum()))(grid))
"""


@pytest.fixture
def run(tmp_path):
    """Runs a command whose user keeps all programs, however fast they compile: returns what it prints, and the files
    that are kept afterwards."""

    def run(*arguments, **settings):
        user = {"JAX_ENABLE_COMPILATION_CACHE": "true", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        user |= {"XDG_CACHE_HOME": str(tmp_path / "caches")}
        command = [sys.executable, "-c", COMMAND, *arguments]
        done = subprocess.run(command, env=os.environ | user | settings, capture_output=True, text=True, check=True)
        return done.stdout, {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*-cache")}

    return run


def test_a_second_start_compiles_nothing(run, tmp_path):
    """Neither what runs custom calls of the package, whose results stay the same."""
    folder = tmp_path / "caches/jax_dcn/programs"
    first, kept = run()
    assert first.startswith(f"Compiled programs are kept in {folder} for later starts; --no-cache keeps none.\n")
    assert any(name.startswith("caches/jax_dcn/programs/jit__lambda") for name in kept)
    assert run() == (first, kept)


@pytest.mark.slow
def test_programs_are_kept_only_where_and_if_the_user_wants(run, tmp_path):
    compiled = run("--no-cache")[0]
    assert "kept" not in compiled and run(JAX_ENABLE_COMPILATION_CACHE="false") == (compiled, set())
    said, kept = run(JAX_COMPILATION_CACHE_DIR=str(tmp_path / "chosen"))
    assert f"kept in {tmp_path}/chosen " in said and {name.partition("/")[0] for name in kept} == {"chosen"}
    (tmp_path / "file").touch()
    said, still_kept = run(JAX_COMPILATION_CACHE_DIR=str(tmp_path / "file/folder"))
    assert "are not kept for later starts: [Errno 20] Not a directory" in said and still_kept == kept


@pytest.mark.parametrize("command", [aliked, detr, rcnn])
def test_help_has_a_number_for_each_field_of_the_recipe(command, capsys):
    with pytest.raises(SystemExit):
        command.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    recipe = command.RECIPES["rt_detr_v2"] if command is detr else command.RECIPE
    without = {"backbone_rate", "evaluate_every"} if command is aliked else set()
    for field in (field for field in fields(recipe) if "help" in field.metadata):
        option, value = f"--{field.name.replace('_', '-')}", getattr(recipe, field.name)
        shown = " ".join(map(str, value)) or "none" if isinstance(value, tuple) else value
        about = rf" {option} (\[{field.name.upper()} ...\]|{field.name.upper()}) {field.metadata['help']} \({shown}[,)]"
        assert bool(re.search(about, text)) == (field.name not in without), about
    if command is detr:
        assert "(0.0001, 0.0002 for d_fine and deformable_detr)" in text


def test_warnings_are_printed_as_their_text(capsys):
    """Whoever has set up logging before."""
    logger = logging.getLogger("examples.library.annotations")
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
    logging.root.addHandler(handler)
    try:
        Parser("command", "A command.", compiles=False).parse_args([])
        logger.warning("%s has a field", "a.json")
    finally:
        logging.root.removeHandler(handler)
    assert capsys.readouterr().out == "a.json has a field\n"
