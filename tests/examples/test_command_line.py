"""Compiled programs that commands keep for later starts. Each start is a process of its own."""

import os
import subprocess
import sys

import pytest

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


def test_programs_are_kept_only_where_and_if_the_user_wants(run, tmp_path):
    compiled = run("--no-cache")[0]
    assert "kept" not in compiled and run(JAX_ENABLE_COMPILATION_CACHE="false") == (compiled, set())
    said, kept = run(JAX_COMPILATION_CACHE_DIR=str(tmp_path / "chosen"))
    assert f"kept in {tmp_path}/chosen " in said and {name.partition("/")[0] for name in kept} == {"chosen"}
