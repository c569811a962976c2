"""The command line of the ResNet; tests/interop compares its results with mmdet's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from examples.resnet import DEVIATION, MEAN, ResNet
from examples.resnet.__main__ import main
from jax_dcn import interop

pytestmark = pytest.mark.platforms("cpu")


def test_features_of_an_image(tmp_path, capsys):
    model = ResNet(50, modulated=False, offset_groups=2)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 32, 64, 3)))
    random = np.random.default_rng(0)
    variables = jax.tree.map(lambda leaf: random.uniform(0.01, 0.02, leaf.shape).astype(np.float32), shapes)
    np.savez(tmp_path / "weights.npz", **interop.to_torch(variables, module="net"))
    pixels = random.integers(0, 255, (32, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")

    options = ["--unmodulated", "--offset-groups", "2", "--module", "net"]
    main([str(tmp_path / "weights.npz"), str(tmp_path / "image.png"), *options])
    lines = capsys.readouterr().out.splitlines()
    features = jax.jit(model.apply)(variables, ((pixels - np.array(MEAN)) / DEVIATION).astype(np.float32)[None])
    assert [line.split(", mean")[0] for line in lines] == [
        f"stride {stride:2}: {feature.shape}" for stride, feature in zip((4, 8, 16, 32), features, strict=True)
    ]
    for line, feature in zip(lines, features, strict=True):
        assert float(line.split()[-1]) == pytest.approx(float(feature.max()), rel=1e-4)
