"""The comparison of whole detectors, and the launches of their training steps, with a tiny one."""

import json
from functools import partial

import pytest

pytest.importorskip("optax", reason="the extra 'examples' is not installed")

from benchmarks import training_programs, whole_models
from benchmarks.measurements.detectors import Detector, transformers
from tests.helpers import detectors

pytestmark = [pytest.mark.platforms("cpu"), pytest.mark.slow]
WRITE = partial(transformers.write, detectors.CONFIGS["rt_detr"])
TINY = {"tiny": Detector((128, 128), WRITE, transformers.program, transformers.OTHERS)}


def test_a_page_has_times_memory_and_the_first_step(monkeypatch, tmp_path):
    monkeypatch.setattr(whole_models, "DETECTORS", TINY)
    whole_models.main(["--models", "tiny", "--images", "1", "--repeats", "2", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "cpu-whole-models.json").read_text())["rows"]
    assert [row["pass"] for row in rows] == ["forward", "step"]
    for row in rows:
        assert row["seconds"]["jax_dcn"]["turns"] == 2 and row["bytes"]["jax_dcn"] > 0
        assert row["without"]["without CUDA graphs"] == "runs on the GPU"
        if "transformers" in row["seconds"]:
            assert row["differences"]["transformers"] < whole_models.TOLERANCE
    assert rows[1]["first step"]["jax_dcn"]["operations"] > 1000
    (page,) = tmp_path.glob("*-cpu-whole-models.md")
    assert "| tiny  | 1      | float32 | step    | jax_dcn " in page.read_text()


@pytest.mark.usefixtures("compiler_for_gpus")
def test_a_page_has_the_launches_of_a_step(monkeypatch, tmp_path):
    monkeypatch.setattr(training_programs, "DETECTORS", TINY)
    training_programs.main(["--models", "tiny", "--images", "1", "--dtype", "float32", "--out", str(tmp_path)])
    (page,) = tmp_path.glob("*-h100-training-programs.md")
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.read_text().splitlines()]
    assert {"reduction", "product", "convolution", "jax_dcn"} < {cells[0] for cells in lines if len(cells) == 3}
    callers = {cells[2].split(":")[0] for cells in lines if len(cells) == 5}
    assert {"examples/detr/layers.py", "examples/library/optimiser.py"} < callers
