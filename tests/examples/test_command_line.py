"""The help of commands, what they refuse, their warnings, and compiled programs that they keep for later starts."""

import logging
import os
import re
import subprocess
import sys
from dataclasses import fields

import pytest
from PIL import Image

from examples import unwarp
from examples.aliked import __main__ as aliked_matches
from examples.aliked import train as aliked
from examples.detr import train as detr
from examples.library.command_line import Parser
from examples.rcnn import __main__ as rcnn_draws
from examples.rcnn import digits
from examples.rcnn import train as rcnn
from tests.helpers import detr_training

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


@pytest.mark.slow
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
        assert "(0.0001, 0.0002 for d_fine and deformable_detr, 0.0008 for deimv2)" in text


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


SETS, CONFIG = "SET/train.json SET/train", f"--config {detr_training.FOLDER}/rt_detr_v2/config.json"
REFUSED = {
    rcnn: {
        "--steps -3": "argument --steps: must be positive, got -3",
        "--patience 0": "argument --patience: must be positive, got 0",
        "--devices 99": "--devices must be at most the",
        "--distributed a:1 2": "--distributed takes HOST:PORT, the number of processes and the number",
        "--distributed a:1 2 b": "--distributed a:1 2 b: invalid literal for int",
        "--learning-rate nan": "argument --learning-rate: must be between 0 and inf, got nan",
        "--steps 3 --warmup 5": "--warmup must be at most --steps, got 5 and 3",
        "--size 100 64": "--size must be multiples of 32, got [100, 64]",
        "--resume --overwrite": "only one of --resume and --overwrite must be given",
        "--best AP": "--best, --patience and --evaluate-every need --validation",
        "--validation a b c": "--validation takes ANNOTATIONS and IMAGES, got a b c",
        "--out a.pkl": "--out must be a folder, got the file a.pkl",
        "--evaluate-only": "--evaluate-only needs --checkpoint and --validation",
        "--evaluate-only --checkpoint a --validation b --resume --no-mirror --clip-norm 1": (
            "--evaluate-only does not use --clip-norm, --no-mirror, --resume"
        ),
        "--checkpoint a --backbone b": "only one of --checkpoint and --backbone must",
        "--set style=caffe": "--config must be given with --checkpoint, and --set with --checkpoint or",
        "--backbone a.pkl --set bgr=true": "if you trust it, pass --trust",
        "--checkpoint a.npz --set style": "--set must be NAME=VALUE, got 'style'",
        "--checkpoint a.npz --set bgr=1 --set bgr=0": "--set must name each setting once",
        "--checkpoint a.npz": "No such file or directory: 'a.npz'",
    },
    rcnn_draws: {
        "a.npz a.png --threshold 2": "argument --threshold: must be between 0 and 1, got 2",
        "a.npz a.png --scale 0 5": "argument --scale: must be positive, got 0",
        "a.npz a.png --config a.png": "a.png must be a text in UTF-8: ",
        "a.pkl a.png": "if you trust it, pass --trust",
    },
    digits: {"folder": "folder must have no data set yet, but has validation.json"},
    detr: {
        f"{CONFIG} --ema 1 --sizes 60": "argument --ema: must be between 0 and 0.999999999, got 1",
        f"{CONFIG} --sizes 60": "--sizes must be multiples of 32, got [60]",
        f"{CONFIG} --best box --validation a b": "--best must be one of AP, AP50, AP75",
        f"{CONFIG} --checkpoint nowhere": "either --checkpoint or --config must be given",
    },
    aliked_matches: {
        "": "two photographs, one folder, or --warp",
        "a.png": "must be a folder, got",
        "a.png b.png --out a.png": "--out must be none of the photographs",
        "folder --threshold 20": "argument --threshold: must be between 0 and 1, got 20",
        "folder --model aliked-t16 --weights a": "not allowed with argument --model",
        "a.png b.png --out matches": "--out must end in .png",
        "folder --views 3": "--views must be given with --warp",
        "folder --matcher nearest": "--matcher must not be given with a folder",
        "--warp a.png --out matches.png": "--out must not be given with --warp",
        "--warp a.png --views 0": "argument --views: must be positive, got 0",
        "--warp a.png --weights none.npz": "none.npz",
    },
    aliked: {
        "a.png": "must be one, got",
        "folder --batch-size 0": "argument --batch-size: must be positive, got 0",
        "folder --resume --overwrite": "only one of --resume and --overwrite",
        "folder --out . --overwrite --weights model.npz": "--weights must be none of what --overwrite deletes",
    },
    unwarp: {"a.png --out a.png": "the photograph, --out and --picture must be different files"},
}


@pytest.mark.parametrize(
    ("command", "options"),
    [(command, options) for command, refused in REFUSED.items() for options in refused],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_what_is_refused(command, options, digits_folder, tmp_path, monkeypatch, refusal):
    monkeypatch.setattr("examples.rcnn.train.initialise", lambda *_: {"params": {}, "batch_stats": {}})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.pkl").write_bytes(b"")
    (tmp_path / "folder/validation.json").mkdir(parents=True)
    Image.new("RGB", (20, 10)).save(tmp_path / "a.png")
    data = SETS.replace("SET", str(digits_folder)).split() if command in (rcnn, detr) else []
    assert REFUSED[command][options] in refusal(command.main, *data, *options.split())
