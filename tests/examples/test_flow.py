"""The flow between two images, which gradient descent through `grid_sample` finds."""

import jax
import jax.numpy as jnp
import pytest
from PIL import Image

pytest.importorskip("optax")
pytest.importorskip("matplotlib")

from examples import flow

pytestmark = pytest.mark.platforms("cpu")


def test_the_flow_is_found():
    first, second, true = flow.scene(jax.random.key(1))
    found, losses = flow.find_flow(first, second, 200)
    assert losses[-1] < losses[0] / 50
    assert jnp.linalg.norm(found - true, axis=-1).mean() < 0.2 * jnp.linalg.norm(true, axis=-1).mean()


def test_the_command(tmp_path, capsys):
    flow.main(["--steps", "3", "--out", str(tmp_path / "flow.png")])
    assert "The flow, " in capsys.readouterr().out
    with Image.open(tmp_path / "flow.png") as picture:
        assert len(picture.convert("RGB").getcolors(10**7)) > 50
