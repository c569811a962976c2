"""Detection transformers in training: outputs and gradients beside transformers and the authors' codes."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from safetensors.numpy import load_file

from examples.detr import names, weights
from tests.helpers import detr_training
from tests.helpers.slow import slow_unless

pytestmark = pytest.mark.platforms("cpu")

# Of the authors' code, where transformers has no weights, or others.
DEFORMABLE_DETR_WEIGHTS = {"ce": 2, "bbox": 5, "giou": 2}


def variables_of(case, config, dtype="float32"):
    state = load_file((detr_training.FOLDER / case).parent / "model.safetensors")
    return weights.fill(weights.make_model(config), state, config, dtype)


def named(tree):
    """The leaves by the names of these models, in the layout of PyTorch."""
    found = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path({"params": tree})[0]:
        array = np.asarray(leaf)
        transposed = path[-1].key == "kernel"
        found[names.of_path(path)] = array.transpose(-1, -2, *range(array.ndim - 2)) if transposed else array
    return found


@functools.cache  # both cases of a model have the same shapes
def program(folder, dtype=None):
    """((total, (losses, outputs)), gradient) by variables, images, mask, targets and denoising queries of a model."""
    config = detr_training.read(f"{folder}/train").config
    model = weights.make_model(config, dtype)
    criterion = weights.criterion(weights.Checkpoint(model, {}, config, None))

    def loss(params, others, images, mask, targets, denoising):
        keywords = {"mask": mask, "denoising": denoising}
        keywords = {name: value for name, value in keywords.items() if value is not None}
        outputs = model.apply(others | {"params": params}, images, **keywords)
        losses = criterion(outputs, targets, denoising)
        return sum(losses.values()), (losses, outputs)

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


def run(case, dtype, computed=None):
    """((total, (losses, outputs)), gradient) of a case with arrays of `dtype`, computed in another one if there is one.

    There are more targets than in the golden file: they are padding, and change nothing.
    """
    folder, _, name = case.partition("/")
    golden, denoising = detr_training.read(case), None
    targets = detr_training.targets(golden.arrays, 3 + (name == "empty_image"), dtype)
    if folder.startswith("rt_detr"):
        denoising = detr_training.denoising(golden.arrays, targets, golden.config, golden.arrays["logits"].shape[-1])
    variables = variables_of(case, golden.config, dtype)
    mask = jnp.asarray(golden.arrays["pixel_mask"]) if folder.startswith("deformable_detr") else None
    images = detr_training.images(golden).astype(dtype)
    return program(folder, computed)(variables.pop("params"), variables, images, mask, targets, denoising)


# A model with denoising; test_losses.py has the losses of all.
BY_DEFAULT = ("rt_detr_v2/train",)


@pytest.mark.parametrize("case", [slow_unless(case in BY_DEFAULT, case) for case in detr_training.CASES])
def test_losses_outputs_and_gradients(case, x64):
    golden = detr_training.read(case)
    arrays = golden.arrays
    (total, (losses, outputs)), gradient = run(case, "float64")
    assert_allclose(total, arrays.get("original_total", arrays["total"]), rtol=1e-12)
    expected = golden.starting("original_loss/") or golden.starting("loss/")
    assert losses.keys() == {name for name in expected if "cardinality" not in name}
    for name, loss in losses.items():
        weight = DEFORMABLE_DETR_WEIGHTS[name.split("_")[1]] if case.startswith("deformable_detr") else 1
        assert_allclose(loss, weight * expected[name], rtol=1e-10, atol=1e-10, err_msg=name)
    for name in ("logits", "boxes"):
        parts = [getattr(outputs.layers, name)]
        if outputs.denoising is not None:
            parts.insert(0, getattr(outputs.denoising, name)[:, :, : golden.meta["dn_num_split"][0]])
        found = jnp.concatenate(parts, 2)
        if outputs.layers.first is not None:
            found = jnp.concatenate([getattr(outputs.layers.first, name)[None], found])
        assert_allclose(found, arrays[name], rtol=0, atol=1e-10)
        if outputs.proposals is not None:
            assert_allclose(getattr(outputs.proposals, name), arrays[f"encoder_{name}"], rtol=0, atol=1e-10)

    found = named(gradient)
    heads = {kind: sum(name.startswith(f"{kind}_") for name in gradient) for kind in names.HEADS}

    def gradient_of(name):
        ours = names.renamed(name)
        kind = ours.partition(".")[0]
        return found[re.sub(r"\.\d+", ".0", ours, count=1) if heads.get(kind) == 1 else ours]

    expected = golden.starting("original_gradient/")
    assert expected
    for name, array in expected.items():
        assert_allclose(gradient_of(name), array, rtol=0, atol=1e-10 * max(1, abs(array).max()), err_msg=name)
    parameters = golden.meta.get("original_parameters", golden.meta["parameters"])
    norms = [np.linalg.norm(gradient_of(name)) for name in parameters]
    assert_allclose(norms, arrays["original_gradient_norms"], rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_bfloat16():
    """Positions, boxes and logits have float32. The loss is near the golden one, and gradients are finite."""
    (found, (_, outputs)), gradient = run("rt_detr_v2/train", "float32", jnp.bfloat16)
    assert outputs.layers.logits.dtype == outputs.layers.boxes.dtype == jnp.float32
    assert_allclose(found, detr_training.read("rt_detr_v2/train").arrays["total"], rtol=0.05)
    assert all(leaf.dtype == jnp.float32 and np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.slow
def test_dropout():
    golden = detr_training.read("deformable_detr/train")
    config = golden.config | {"dropout": 0.5, "attention_dropout": 0.2, "activation_dropout": 0.1}
    model, variables = weights.make_model(config), variables_of("deformable_detr/train", config)

    @jax.jit
    def train(key):
        images = detr_training.images(golden).astype(np.float32)
        return model.apply(variables, images, train=True, rngs={"dropout": key}).logits

    first, second = train(jax.random.key(0)), train(jax.random.key(1))
    assert np.array_equal(first, train(jax.random.key(0)))
    assert not np.allclose(first, second)
    assert abs(first - golden.arrays["logits"][-1]).max() > 1e-3


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.slow
def test_batch_norms_are_trained_where_the_config_says(frozen):
    golden = detr_training.read("rt_detr_v2/train")
    images = detr_training.images(golden).astype(np.float32)
    config = golden.config | {"freeze_backbone_batch_norms": frozen}
    model, variables = weights.make_model(config), variables_of("rt_detr_v2/train", config)
    assert ("bn1" in variables["params"]["backbone"]) != frozen

    @jax.jit
    def train(variables):
        return model.apply(variables, images, train=True, mutable=["batch_stats"])[1]["batch_stats"]

    old = variables["batch_stats"]
    changed = jax.tree.map(lambda new, old: not np.array_equal(new, old), train(variables), old)
    assert all(jax.tree.leaves(changed["encoder"]))
    of_backbone = jax.tree.leaves(changed["backbone"])
    assert not any(of_backbone) if frozen else all(of_backbone)
