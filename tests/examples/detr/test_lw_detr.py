"""LW-DETR beside transformers, RF-DETR beside its authors' package, and DEIMv2 beside transformers with its authors'
losses: training, checkpoints and the command.

test_models.py has their outputs in inference.
"""

import functools
import json
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from safetensors import numpy as safetensors

from examples.detr import __main__ as command
from examples.detr import names, train, weights
from examples.detr.denoising import Denoising, Draws, make_denoising
from examples.detr.evaluate import Detector
from examples.detr.images import Preprocessor
from examples.detr.matching import Targets
from examples.detr.names import in_file, renamed
from examples.detr.recipes import Loss, recipe_of
from examples.library.optimiser import Layout, described_rates, make_optimiser
from tests.helpers import checkpoints, coco, detectors
from tests.helpers.slow import slow_unless

pytestmark = pytest.mark.platforms("cpu")

NAMES = [name for name in detectors.CONFIGS if name.startswith(("lw_detr", "rf_detr", "deimv2"))]
BY_DEFAULT = ("rf_detr", "deimv2_lite")
CASES = [slow_unless(name in BY_DEFAULT, name) for name in NAMES]
KINDS = ["lw_detr", "rf_detr"]
LOSS_WEIGHTS = {"ce": 1, "mal": 1, "bbox": 5, "giou": 2, "fgl": 0.15, "ddf": 1.5}


class Golden(NamedTuple):
    """A golden file, and the checkpoint in float64, images and targets that it is of."""

    arrays: dict[str, np.ndarray]
    checkpoint: weights.Checkpoint
    images: np.ndarray
    targets: Targets
    denoising: Denoising | None

    def json(self, name: str) -> Any:
        return json.loads(str(self.arrays[name]))


def read(name):
    config = detectors.CONFIGS[name]
    with np.load(detectors.GOLDEN / f"{name}.npz") as file:
        arrays = dict(file)
    model = weights.make_model(config)
    state = detectors.state(config, json.loads(str(arrays["shapes"])))
    variables = weights.fill(model, state, config, "float64")
    labels, boxes = np.full((2, 5), -1, np.int32), np.full((2, 5, 4), 0.5)  # and padding
    for image, (of_image, boxes_of_image) in enumerate(detectors.targets(config)):
        labels[image, : len(of_image)], boxes[image, : len(of_image)] = of_image, boxes_of_image
    processor = Preprocessor.from_json(config["model_type"], {})
    checkpoint = weights.Checkpoint(model, {"batch_stats": {}} | variables, config, processor)
    images = detectors.images(config)[0].astype("float64")
    targets, denoising = Targets(jnp.asarray(boxes), jnp.asarray(labels)), None
    if config.get("num_denoising"):
        denoising = make_denoising(Draws(*detectors.draws(config)), targets, model.config)
    return Golden(arrays, checkpoint, images, targets, denoising)


@functools.cache
def slopes(model, criterion):
    """The gradient and the losses in training, by parameters, other variables, images, targets and denoising."""

    def loss(params, others, images, targets, denoising):
        keywords = {} if denoising is None else {"denoising": denoising}
        outputs, _ = model.apply(others | {"params": params}, images, train=True, mutable=["batch_stats"], **keywords)
        losses = criterion(outputs, targets, denoising)
        return sum(losses.values()), losses

    return jax.jit(jax.grad(loss, has_aux=True))


@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients(name, x64):
    """Of each gradient, the norm and two sums with random weights."""
    golden = read(name)
    checkpoint = golden.checkpoint
    params, others = checkpoint.variables["params"], {"batch_stats": checkpoint.variables["batch_stats"]}
    compute = slopes(checkpoint.model, weights.criterion(checkpoint))
    gradient, losses = compute(params, others, golden.images, golden.targets, golden.denoising)
    expected = golden.json("losses")
    assert losses.keys() | {"total"} == expected.keys()
    for key, loss in losses.items():
        weight = LOSS_WEIGHTS[key.split("_")[1]]
        assert_allclose(loss, weight * expected[key], rtol=1e-10, atol=1e-10, err_msg=key)
    assert_allclose(sum(losses.values()), expected["total"], rtol=1e-12)
    found = weights.to_file(checkpoint._replace(variables={"params": gradient}), "float64")
    assert found.keys() - names.derived(found, checkpoint.config).keys() == set(golden.json("parameters"))
    for key, measured in zip(golden.json("parameters"), golden.arrays["gradients"], strict=True):
        tolerance = 1e-10 * max(1, measured[0])
        assert_allclose(detectors.measured(key, found[key]), measured, rtol=0, atol=tolerance, err_msg=key)


@pytest.mark.parametrize("name", [slow_unless(False, name) for name in NAMES])
def test_twenty_steps(name, x64, monkeypatch):
    """With the authors' rates of layers and weight decays. Schedules, which have float32, are left out: in one of the
    models, a difference of 1e-10 after a step is 1e-5 after twenty."""
    monkeypatch.setattr(
        "examples.library.optimiser.rate", lambda recipe, group, factor: factor * recipe.group_rates[group]
    )
    golden = read(name)
    checkpoint = golden.checkpoint
    params, others = checkpoint.variables["params"], {"batch_stats": checkpoint.variables["batch_stats"]}
    layout = Layout.of(recipe_of(checkpoint), params)
    optimiser = make_optimiser(recipe_of(checkpoint), layout.rules)
    compute = slopes(checkpoint.model, weights.criterion(checkpoint))

    @jax.jit
    def step(packed, state):
        gradient, losses = compute(layout.unpack(packed), others, golden.images, golden.targets, golden.denoising)
        updates, state = optimiser.update(layout.pack(gradient).vectors, state, packed.vectors)
        return packed._replace(vectors=optax.apply_updates(packed.vectors, updates)), state, sum(losses.values())

    packed = layout.pack(params)
    state, found = optimiser.init(packed.vectors), []
    for _ in golden.arrays["trained"]:
        packed, state, loss = step(packed, state)
        found.append(loss)
    assert_allclose(found, golden.arrays["trained"], rtol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_what_was_read(name, tmp_path):
    source, (shapes, *_) = detectors.write_golden(tmp_path / "source", name), detectors.read(name)
    arrays = detectors.state(detectors.CONFIGS[name], shapes)
    weights.save(tmp_path / "written", weights.load(source))
    found = safetensors.load_file(tmp_path / "written/model.safetensors")
    counters = {key for key in found if key.endswith("num_batches_tracked")}
    assert counters == {key for key in shapes if key.endswith("num_batches_tracked")}
    checkpoints.assert_same({key: found[key] for key in found.keys() - counters}, arrays)
    assert json.loads((tmp_path / "written/config.json").read_text()) == detectors.CONFIGS[name]


# Names in memory in transformers, and in files.
IN_MEMORY = {
    "lw_detr": {
        "model.backbone.backbone.encoder.layer.0.attention.k_proj.weight": "attention.attention.key.weight",
        "model.backbone.backbone.encoder.layer.0.attention.o_proj.bias": "attention.output.bias",
    },
    "rf_detr": {
        "model.backbone.backbone.encoder.layer.1.attention.o_proj.bias": "attention.output.dense.bias",
        "model.backbone.backbone.encoder.layer.1.layer_scale2.lambda1": "1.layer_scale2.lambda1",
        "model.backbone.projector.projector_layer.bottlenecks.2.conv1.norm.weight": "0.0.m.2.cv1.bn.weight",
        "model.backbone.projector.layer_norm.weight": "backbone.0.projector.stages.0.1.weight",
        "model.decoder.layers.1.cross_attn_layer_norm.weight": "transformer.decoder.layers.1.norm2.weight",
        "model.decoder.layers.1.layer_norm.weight": "transformer.decoder.layers.1.norm3.weight",
        "model.decoder.layers.1.mlp.fc2.weight": "transformer.decoder.layers.1.linear2.weight",
        "model.decoder.layernorm.weight": "transformer.decoder.norm.weight",
        "model.enc_output.1.weight": "transformer.enc_output.1.weight",
        "model.reference_point_embed.weight": "refpoint_embed.weight",
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_names_in_memory(kind):
    for name, end in IN_MEMORY[kind].items():
        assert in_file(renamed(name, kind), {"model_type": kind}).endswith(end)


@pytest.mark.slow
def test_a_checkpoint_of_the_authors(tmp_path):
    """Of RF-DETR: a file of PyTorch with other entries, beside a config.json."""
    torch = pytest.importorskip("torch")
    source = detectors.write_golden(tmp_path / "source", "rf_detr")
    arrays = safetensors.load_file(source / "model.safetensors")
    state = {key: torch.from_numpy(array) for key, array in arrays.items()}
    state["_kp_active_mask"] = torch.zeros((0, 0), dtype=torch.bool)
    expected = weights.load(source).variables
    (source / "model.safetensors").unlink()
    torch.save({"model": state, "epoch": 3}, source / "pytorch_model.bin")
    jax.tree.map(assert_array_equal, weights.load(source).variables, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_rates_of_layers(kind):
    checkpoint = read(kind).checkpoint
    recipe, rate = recipe_of(checkpoint), 1e-4 * 1.5 * 0.7**2
    said = described_rates(recipe, checkpoint.variables["params"])
    assert f"backbone {rate:.3g}" in said and "0.7 times that in decoder/" in said
    top = {"lw_detr": 4, "rf_detr": 5}[kind]  # RF-DETR counts the layer after its last map
    assert f"{0.8 ** (top + 1):.3g} times that in backbone/embeddings/" in said
    assert f"{0.8 ** (top - 2):.3g} times that in backbone/layer_2/" in said


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four images of 64 x 64 pixels, each with a bright square."""
    folder, objects = tmp_path_factory.mktemp("squares"), []
    for image in range(1, 5):
        objects.append((image, 1 + image % 2, [8 * image, 20, 20, 20]))
    coco.write_squares(folder, [(64, 64)] * 4, objects, ["red", "yellow"])
    return folder


SOME_LOSSES = {name: {"loss_ce", "loss_giou_0", "loss_bbox_enc"} for name in KINDS}
SOME_LOSSES["deimv2_lite"] = {"loss_mal", "loss_giou_aux_0", "loss_bbox_enc_0", "loss_mal_dn_pre"}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME_LOSSES)
def test_the_commands(name, folder, tmp_path, capsys):
    """A checkpoint is trained on other classes, with pictures, evaluated again, and finds objects."""
    source = detectors.write_golden(tmp_path / "source", name)
    data = [str(folder / "annotations.json"), str(folder)]
    out, size = tmp_path / "out", ["--sizes", "64"]
    few = [*size, "--batch-size", "2", "--steps", "3", "--devices", "1", "--objects", "3", "--evaluate-every", "2"]
    train.main([*data, "--checkpoint", str(source), "--validation", *data, "--out", str(out), *few])
    printed = capsys.readouterr().out
    assert ("times that in backbone/layer_0/" in printed) == (name in KINDS) and "step 3: AP " in printed
    first, *_ = map(json.loads, (out / "log.jsonl").read_text().splitlines())
    assert SOME_LOSSES[name] <= first.keys()
    assert weights.load(out / "model").labels == weights.load(out / "best").labels == ["red", "yellow"]
    for picture in ("curves.png", "detections.png", "mistakes.png"):
        with Image.open(out / picture) as image:
            assert len(image.convert("RGB").getcolors(10**7)) > 50
    train.main([*data, "--validation", *data, "--checkpoint", str(out / "best"), "--evaluate-only"])
    found = tmp_path / "found.json"
    files = [str(folder / "1.png"), "--out", str(tmp_path / "1.png"), "--json", str(found)]
    command.main([str(out / "best"), *files, "--threshold", "0.001"])
    assert {one["class"] for one in json.loads(found.read_text())[0]["objects"]} <= {"red", "yellow"}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_random_weights(name, folder, tmp_path, capsys):
    """Their losses are finite; and the sizes of images are multiples of those of windows."""
    config = detectors.CONFIGS[name]
    config = config | {"backbone_config": config["backbone_config"] | {"patch_size": 12}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    data = [str(folder / "annotations.json"), str(folder)]
    options = train.parse([*data, "--config", str(tmp_path / "config.json"), "--steps", "1"])
    steps = {"lw_detr": [-3, -2, -1, 1, 2, 3, 4, 0], "rf_detr": [-5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 0]}
    assert options.sizes == [(26 + count) * 24 for count in steps[name]]
    checkpoint = options.inputs[2]
    loss = Loss.of(checkpoint)
    batch = next(iter(train.training_batches(options.inputs[0], options.loading, range(1))))
    small = batch._replace(images=batch.images[:2, :96, :96], mask=batch.mask[:2, :96, :96])
    small = small._replace(targets=jax.tree.map(lambda leaf: leaf[:2], small.targets))
    variables = {"batch_stats": {}} | checkpoint.variables
    losses, _ = jax.jit(loss)(variables, small, jax.random.key(0))
    assert all(np.isfinite(one) for one in losses.values())
    assert isinstance(loss.detector, Detector)
