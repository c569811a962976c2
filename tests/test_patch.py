"""`jax_dcn.patch`: values and gradients before and after, what it refuses and reports, and that it is undone.

Most tests have stand-ins for the libraries, with the same interfaces.
"""

import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest
from numpy.testing import assert_allclose

import jax_dcn
from benchmarks import patched_models
from benchmarks.measurements.detectors.patched import DETECTORS, Model, Program
from jax_dcn._patch import functions
from jax_dcn._patch.functions import LIBRARIES, TARGETS
from tests.helpers import patched

CASES = patched.cases()
ATTENTION = "ms_deform_attn_core"
OF_ZEROMODELS = [str(target) for target in TARGETS if target.library == "zeromodels"]
D_FINE = next(target for target in TARGETS if target.library == "keras_hub")


@pytest.fixture
def stand_in(monkeypatch):
    """A library that can be imported, of a version that was tried. It lacks or changes some functions."""

    def make(library, lacks=(), version=None, backend="jax", **changes):
        names = {"keras": patched.keras(backend), library: ModuleType(library)}
        names[library].__spec__ = ModuleSpec(library, None)
        for target in TARGETS:
            if target.library == library and target.module not in lacks:
                names[target.module] = module = ModuleType(target.module)
                function = getattr(patched, target.function)
                if not target.kept_by:  # a function of its own, as each module of the library has
                    function = FunctionType(function.__code__, function.__globals__, argdefs=function.__defaults__)
                setattr(module, target.function, function)
                module.DFineMultiscaleDeformableAttention = patched.DFineMultiscaleDeformableAttention
                vars(module).update(changes)
        for name in lacks:
            names[name] = None  # `import` then says that the module is missing
        for name, module in names.items():
            monkeypatch.setitem(sys.modules, name, module)
        installed = version or LIBRARIES[library].versions[0]
        monkeypatch.setattr(functions, "version", lambda _: installed)

    return make


@pytest.fixture
def installed(monkeypatch):
    """The library itself, or the test is skipped."""

    def load(library):
        monkeypatch.setenv("KERAS_BACKEND", "jax")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of its packages
            pytest.importorskip(library)

    return load


def current(target):
    return getattr(import_module(target.module), target.function)


def results(case, target):
    """The value and all gradients."""
    function = current(target)

    def loss(*arrays):
        y = case.call(function, *arrays)
        return jnp.sum(jnp.sin(y) * jnp.arange(y.size).reshape(y.shape)), y

    arrays = [*map(jnp.asarray, case.arrays)]
    (_, y), gradients = jax.jit(jax.value_and_grad(loss, argnums=range(len(arrays)), has_aux=True))(*arrays)
    return y, *gradients


def named(target):
    names = [target.function, "discrete"] if target.library == "keras_hub" else [target.function]
    if "rf_detr" in target.module:
        names = ["one level"]  # RF-DETR's own function is wrong for several
    return [pytest.param(target, CASES[name], id=f"{target.module.split('.')[-1]}-{name}") for name in names]


ALL = [one for target in TARGETS for one in named(target)]


@pytest.mark.parametrize("target, case", ALL)
def test_values_and_gradients(target, case, stand_in, x64):
    stand_in(target.library)
    assert_same_when_patched(target, case)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:jax.nn.one_hot input should be integer-typed")  # of scenic's RoIAlign
@pytest.mark.parametrize("target, case", ALL)
def test_values_and_gradients_of_the_library(target, case, installed):
    installed(target.library)
    pytest.importorskip(target.module, exc_type=ImportError)
    is_float32 = target.library == "keras_hub"  # whose slices have indices of two types with float64
    with jax.enable_x64(not is_float32):
        assert_same_when_patched(target, case, 1e-5 if is_float32 else 1e-10)


def assert_same_when_patched(target, case, tolerance=1e-10):
    original = current(target)
    expected = results(case, target)
    with patched_quietly(target.library) as patch:
        assert str(target) in patch.replaced
        assert current(target) is not original
        for found, like in zip(results(case, target), expected, strict=True):
            assert_allclose(found, like, rtol=tolerance, atol=tolerance * np.abs(like).max())
    assert current(target) is original


def patched_quietly(library):
    """Also if the library was not installed by pip, so that its version is unknown."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* of an unknown version", UserWarning)
        return jax_dcn.patch(library)


@pytest.mark.thorough
@pytest.mark.platforms("cpu")
@pytest.mark.filterwarnings("ignore")  # those of Keras and of the models
@pytest.mark.parametrize("name", DETECTORS)
def test_whole_models(name, installed):
    """Outputs and gradients of models with random weights, in float32. The function is compiled again."""
    model = DETECTORS[name]
    installed(model.library)
    crashes = jaxlib.__version__ in ("0.10.2", "0.11.0") and "ynn_fusion_type=" not in os.environ["XLA_FLAGS"]
    if name == "RAFT" and crashes:
        pytest.skip("this jaxlib would crash: https://github.com/jax-ml/jax/issues/39257")
    program = model.make(model.small)

    @jax.jit
    def compute(weights, inputs):
        return program.forward(weights, inputs), jax.grad(program.loss)(weights, inputs)

    expected = compute(program.weights, program.inputs)
    with patched_quietly(model.library):
        found = compute(program.weights, program.inputs)
    for ours, theirs, tolerance in zip(found, expected, (1e-4, 1e-3), strict=True):
        ours, theirs = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in (ours, theirs))
        assert 0 < np.linalg.norm(ours - theirs) <= tolerance * np.linalg.norm(theirs)


@pytest.mark.parametrize("others", ["bfloat16", "float32"])
@pytest.mark.parametrize("target, case", ALL)
def test_16_bits(target, case, others, stand_in):
    """All arrays are of the compute type of a mixed policy, or only the first one."""
    stand_in(target.library)
    original = current(target)
    types = ["bfloat16", *[others] * (len(case.arrays) - 1)]
    arrays = [jnp.asarray(array, "bfloat16").astype(type_) for array, type_ in zip(case.arrays, types, strict=True)]
    with jax_dcn.patch(target.library):
        y = case.call(current(target), *arrays)
    assert y.dtype == case.call(original, *arrays).dtype
    wide = case.call(original, *(array.astype("float32") for array in arrays))
    assert_allclose(y.astype("float32"), wide, rtol=2e-2, atol=2e-2)


def test_no_queries(stand_in):
    stand_in("zeromodels")
    with jax_dcn.patch("zeromodels"):
        samples = current(TARGETS[5])(jnp.ones((2, 30, 2, 4)), jnp.ones((2, 0, 2, 2, 3, 2)), patched.SHAPES)
    assert samples.shape == (2, 0, 2, 2, 3, 4)


def test_every_module_changes_and_is_restored(stand_in):
    """Also a module that is imported in between, after an exception, and a name that somebody else has changed."""
    stand_in("zeromodels")
    theirs = current(TARGETS[0])
    early, late = ModuleType("early"), ModuleType("late")
    early.attend = early.other = theirs
    with pytest.MonkeyPatch.context() as patches, pytest.raises(KeyError):
        patches.setitem(sys.modules, "early", early)
        patches.setitem(sys.modules, "late", late)
        with jax_dcn.patch("zeromodels"):
            assert early.attend is not theirs
            late.attend, early.other = early.attend, len
            raise KeyError
    assert early.attend is late.attend is current(TARGETS[0]) is theirs
    assert early.other is len


def test_several_at_a_time(stand_in):
    """The last one restores the functions, whatever the order; `undo` may be called again."""
    stand_in("jax_raft")
    target = TARGETS[-1]
    theirs = current(target)
    first = jax_dcn.patch("jax_raft")
    ours = current(target)
    with jax_dcn.patch("jax_raft") as second:
        assert current(target) is ours
        first.undo()
        first.undo()
        assert current(target) is ours
        assert first.replaced == second.replaced == ("jax_raft.model.grid_sample",)
        with pytest.raises(RuntimeError, match=r"patch\('jax_raft'\) has been entered and cannot be entered"), second:
            pass
    assert current(target) is theirs
    with pytest.raises(RuntimeError, match=r"patch\('jax_raft'\) has been undone and cannot be entered"), first:
        pass


def test_threads(stand_in):
    stand_in("jax_raft")
    theirs = current(TARGETS[-1])

    def enter(_):
        with jax_dcn.patch("jax_raft"):
            assert current(TARGETS[-1]) is not theirs

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(enter, range(100)))
    assert current(TARGETS[-1]) is theirs


def test_layers_that_keep_the_function(stand_in):
    """Those made before, in between and after; each of them has its own function again. One of a user's stays."""
    stand_in("keras_hub")
    make = patched.DFineMultiscaleDeformableAttention
    before, theirs, of_user = make(), patched.multi_scale_deformable_attention_v2, [make(), make()]
    of_user[0].ms_deformable_attn_core = len
    with jax_dcn.patch("keras_hub"):
        between = make()
        between.ms_deformable_attn_core = before.ms_deformable_attn_core
        assert between.ms_deformable_attn_core is before.ms_deformable_attn_core is not theirs
        of_user[1].ms_deformable_attn_core = len
        assert not hasattr(make.__new__(make), "ms_deformable_attn_core")
        assert {layer.ms_deformable_attn_core for layer in of_user} == {len}
    assert {layer.ms_deformable_attn_core for layer in (before, between, make())} == {theirs}
    assert {layer.ms_deformable_attn_core for layer in of_user} == {len}


def test_modules_that_are_loaded_again(stand_in, monkeypatch):
    """The next `patch` replaces their functions, too, and `undo` also restores what was made before."""
    stand_in("keras_hub")
    theirs, layer = current(D_FINE), patched.DFineMultiscaleDeformableAttention()
    patch = jax_dcn.patch("keras_hub")
    before = sys.modules[D_FINE.module]
    stand_in("keras_hub", **{D_FINE.function: theirs, D_FINE.kept_by[0]: type("Again", (type(layer),), {})})
    with jax_dcn.patch("keras_hub") as again:
        assert again.replaced == (str(D_FINE),)
        assert current(D_FINE) is not theirs
    assert current(D_FINE) is not theirs
    patch.undo()
    assert current(D_FINE) is getattr(before, D_FINE.function) is layer.ms_deformable_attn_core is theirs


class Refusing(ModuleType):
    """A module whose names cannot be set."""

    def __setattr__(self, name, value):
        raise RuntimeError(f"{name} is constant")


def test_an_error_changes_nothing(stand_in, monkeypatch):
    stand_in("zeromodels")
    theirs, refusing = current(TARGETS[0]), Refusing("refusing")
    vars(refusing)["attend"] = theirs
    monkeypatch.setitem(sys.modules, "refusing", refusing)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="attend is constant"):
            jax_dcn.patch("zeromodels")
        assert current(TARGETS[0]) is theirs
    del vars(refusing)["attend"]
    with jax_dcn.patch("zeromodels") as patch:
        vars(refusing)["attend"] = current(TARGETS[0])
        with pytest.raises(RuntimeError, match="attend is constant"):
            patch.undo()
        assert current(TARGETS[0]) is not theirs
        del vars(refusing)["attend"]


def test_modules_that_share_a_function(stand_in):
    stand_in("zeromodels", **{ATTENTION: patched.ms_deform_attn_core})
    with jax_dcn.patch("zeromodels") as patch:
        assert patch.replaced == tuple(OF_ZEROMODELS)
    assert current(TARGETS[0]) is patched.ms_deform_attn_core


def test_compiled_functions_change(stand_in):
    stand_in("jax_raft")
    target = TARGETS[-1]
    image, grid = CASES["grid_sample"].arrays
    theirs = current(target)

    @jax.jit
    def compute():
        traced.append(current(target))
        return current(target)(jnp.asarray(image), jnp.asarray(grid))

    traced = []
    compute()
    with jax_dcn.patch("jax_raft"), jax_dcn.patch("jax_raft"):
        compute()
        jax_dcn.patch("jax_raft").undo()
        compute()
    compute()
    assert [function is theirs for function in traced] == [True, False, True]


def changed(value, value_spatial_shapes, sampling_locations, attention_weights, scale):
    """The attention with one more parameter."""


def test_missing_functions_are_named(stand_in):
    lacking = TARGETS[1].module
    stand_in("zeromodels", lacks=[lacking], bilinear_sample=changed)
    with pytest.warns(UserWarning) as caught, jax_dcn.patch("zeromodels") as patch:
        assert patch.replaced == (*OF_ZEROMODELS[:1], *OF_ZEROMODELS[2:5])
    (warning,) = caught
    assert warning.filename == __file__
    message = str(warning.message)
    assert message.startswith(f"patch('zeromodels'), which was tried with 1.3.6, did not find {lacking}.{ATTENTION} (")
    assert "mask2former_layers.bilinear_sample (its parameters must be value, sampling_locations, spatial_sh" in message
    assert message.count("bilinear_sample (") == 2
    assert message.endswith("attention_weights, scale) in zeromodels 1.3.6")


@pytest.mark.parametrize("version", ["1.4.0", "of an unknown version"])
def test_unknown_version(version, stand_in):
    stand_in("zeromodels", version=version)
    with pytest.warns(UserWarning, match=rf"1\.3\.6, found all that it replaces in zeromodels {version}"):
        jax_dcn.patch("zeromodels").undo()


def test_warnings_as_errors_change_nothing(stand_in):
    stand_in("jax_raft", version="9")
    theirs = current(TARGETS[-1])
    for _ in range(2):
        with pytest.raises(UserWarning):
            jax_dcn.patch("jax_raft")
    assert current(TARGETS[-1]) is theirs


class Renamed:
    """A layer that does not keep the function."""

    def __init__(self):
        self.attend = None


@pytest.mark.parametrize(
    "library, options, error, message",
    [
        (
            "jax_raft",
            {"grid_sample": None},
            ImportError,
            "did not find jax_raft.model.grid_sample .* in jax_raft 0.1.1",
        ),
        ("keras_hub", {D_FINE.kept_by[0]: Renamed}, ImportError, "has no attribute ms_deformable_attn_core"),
        ("keras_hub", {"backend": "torch"}, RuntimeError, "KERAS_BACKEND=jax before .* its backend is 'torch'"),
        ("keras_hub", {"lacks": ["keras"]}, ImportError, "KERAS_BACKEND=jax before .* keras"),
    ],
)
def test_errors(library, options, error, message, stand_in):
    stand_in(library, **options)
    with pytest.raises(error, match=message):
        jax_dcn.patch(library)


def test_libraries_that_are_not_installed(monkeypatch):
    monkeypatch.setattr(functions, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"patch\('keras_hub'\) needs keras-hub, which is not installed"):
        jax_dcn.patch("keras_hub")


def test_nothing_is_imported_before():
    code = f"import sys, jax_dcn; assert not {{*{[*LIBRARIES, 'keras']!r}}} & {{*sys.modules}}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_page_has_both(stand_in, tmp_path, monkeypatch):
    """A short run of the benchmark."""
    stand_in("jax_raft")
    arrays = [jnp.asarray(array, "float32") for array in CASES["grid_sample"].arrays]
    program = Program(lambda arrays, _: current(TARGETS[-1])(*arrays), arrays, ())
    monkeypatch.setattr(patched_models, "MODELS", {"samples": Model("jax_raft", lambda _: program)})
    patched_models.main(["--repeats", "1", "--out", str(tmp_path)])
    (page,) = tmp_path.glob("*-cpu-patch.md")
    rows = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("| samples")]
    assert [row[2].strip() for row in rows] == ["forward", "with gradients"]
    assert all(0 < float(row[-1].strip(" |")) < 1e-5 for row in rows)
