"""A short run of the benchmark of training steps."""

import pytest

pytest.importorskip("optax")
pytest.importorskip("pycocotools")

from benchmarks import detr_training


@pytest.mark.thorough
@pytest.mark.platforms("cpu")
def test_the_page(tmp_path, monkeypatch):
    small = detr_training.SMALL | {"num_queries": 8, "num_denoising": 2, "decoder_layers": 1}
    monkeypatch.setattr(detr_training, "PROBLEMS", {"tiny": (small, 1, 64, 2)})
    detr_training.main(["--out", str(tmp_path), "--repeats", "2"])
    (page,) = tmp_path.glob("*-detr-training.md")
    assert "| tiny" in page.read_text()
