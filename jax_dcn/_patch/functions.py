"""The public class, and the table of what it replaces."""

import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from inspect import signature
from types import ModuleType
from typing import Any, NamedTuple, Self

import jax

from jax_dcn._patch import adapters

Function = Callable[..., Any]


class Library(NamedTuple):
    distribution: str  # its name for pip
    versions: tuple[str, ...]  # those that the tests have run with
    uses_keras: bool


class Target(NamedTuple):
    """A function of a library, and what replaces it."""

    library: str
    module: str
    function: str
    replacement: Function
    kept_by: tuple[str, str] | None = None  # a class, and the attribute in which its instances keep the function

    def __str__(self) -> str:
        return f"{self.module}.{self.function}"


LIBRARIES = {
    "zeromodels": Library("zeromodels", ("1.3.6",), uses_keras=True),
    "keras_hub": Library("keras-hub", ("0.32.0",), uses_keras=True),
    "scenic": Library("scenic", ("0.0.1",), uses_keras=False),
    "jax_raft": Library("jax-raft", ("0.1.1",), uses_keras=False),
}
ZERO, CORE, SCENIC = "zeromodels.models", "ms_deform_attn_core", "scenic.projects.baselines"
D_FINE = "keras_hub.src.models.d_fine.d_fine_attention"
D_FINE_LAYER = "DFineMultiscaleDeformableAttention", "ms_deformable_attn_core"
TARGETS = (
    Target("zeromodels", f"{ZERO}.rf_detr.rf_detr_layers", CORE, adapters.channels_first),
    Target("zeromodels", f"{ZERO}.rt_detr.rt_detr_layers", CORE, adapters.channels_first),
    Target("zeromodels", f"{ZERO}.rt_detr_v2.rt_detr_v2_layers", CORE, adapters.channels_first),
    Target("zeromodels", f"{ZERO}.grounding_dino.grounding_dino_layers", CORE, adapters.channels_first),
    Target("zeromodels", f"{ZERO}.dfine.dfine_layers", "ms_deform_attn_core_variable", adapters.points_of_levels),
    Target("zeromodels", f"{ZERO}.mask2former.mask2former_layers", "bilinear_sample", adapters.samples),
    Target("zeromodels", f"{ZERO}.oneformer.oneformer_layers", "bilinear_sample", adapters.samples),
    Target("keras_hub", D_FINE, "multi_scale_deformable_attention_v2", adapters.keras_hub, kept_by=D_FINE_LAYER),
    Target("scenic", f"{SCENIC}.deformable_detr.attention", "deform_attn_sampling_fn", adapters.scenic_attention),
    # `multilevel_roi_align` keeps `roi_align` as a default value, but both call this function.
    Target("scenic", f"{SCENIC}.centernet.modeling.roi_align", "_roi_align_einsum", adapters.scenic_roi_align),
    Target("jax_raft", "jax_raft.model", "grid_sample", adapters.jax_raft),
)

Found = dict[Target, tuple[Function, Function]]  # the function of the library, and a new one that calls the replacement

_found: dict[str, Found] = {}  # by library, while at least one `patch` of it is not undone
_count: dict[str, int] = {}  # of those


class patch:
    """Makes the models of another library use the kernels of this package, until `undo` or the end of a `with` block.

    It replaces the functions that sample feature maps: in ``"zeromodels"`` those of RF-DETR, RT-DETR, RT-DETRv2,
    D-FINE, Grounding DINO, Mask2Former and OneFormer, in ``"keras_hub"`` that of D-FINE, in ``"scenic"`` those of
    Deformable DETR and CenterNet, and in ``"jax_raft"`` that of RAFT. docs/patch.md names the functions and the
    versions that were tried, and says where they gain how much.

    Parameters and checkpoints stay as they are, and values and gradients are the same up to rounding. Models that exist
    change, too, and all modules that have imported a replaced function. So do functions that `jax.jit` has compiled,
    because jax's caches are cleared, here and when it is undone; what `lower(...).compile()` has returned stays as it
    is. If a library is patched several times, its functions are restored when the last `patch` is undone.

    Args:
      library: the name of a package that can be imported, one of those above.

    Attributes:
      replaced: the full names of the functions that are replaced.

    Raises:
      ValueError: the library is none of those above.
      ImportError: the library is not installed, or has none of the functions.
      RuntimeError: Keras has another backend than JAX.

    Warns:
      UserWarning: the version was not tried, or some functions are not in the library or have other parameters. The
        message names these, and they stay as they are.

    Example:
      ::

        with jax_dcn.patch("zeromodels"):
            outputs = model(images)

        patched = jax_dcn.patch("keras_hub")  # until patched.undo()

      >>> import jax_dcn
      >>> jax_dcn.patch("keras")
      Traceback (most recent call last):
        ...
      ValueError: library must be one of 'zeromodels', 'keras_hub', 'scenic', 'jax_raft', got 'keras'
    """

    def __init__(self, library: str) -> None:
        if library not in LIBRARIES:
            raise ValueError(f"library must be one of {', '.join(map(repr, LIBRARIES))}, got {library!r}")
        if library not in _found:
            found = _find(library)
            _switch(found, on=True)
            _found[library], _count[library] = found, 0
        _count[library] += 1
        self.library = library
        self.replaced = tuple(map(str, _found[library]))
        self._is_undone = False

    def undo(self) -> None:
        """Restores the functions of the library, if no other `patch` of it is active. A second call does nothing."""
        if not self._is_undone:
            self._is_undone = True
            _count[self.library] -= 1
            if _count[self.library] == 0:
                _switch(_found.pop(self.library), on=False)

    def __enter__(self) -> Self:
        if self._is_undone:
            raise RuntimeError(f"patch({self.library!r}) has been undone and cannot be entered: call `patch` again")
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def _find(library: str) -> Found:
    """The functions in the library, which is imported. Raises an error or warns if some are missing."""
    distribution, tried, uses_keras = LIBRARIES[library]
    if find_spec(library) is None:
        raise ModuleNotFoundError(f"patch({library!r}) needs {distribution}, which is not installed", name=library)
    if uses_keras:
        _check_backend(library)
    found: Found = {}
    missing = []
    for target in TARGETS:
        if target.library == library:
            try:
                original = _checked(target)
                found[target] = original, _calling(target.replacement)
            except (ImportError, AttributeError, TypeError) as reason:
                missing.append(f"{target} ({reason})")
    try:
        installed = version(distribution)
    except PackageNotFoundError:
        installed = "of an unknown version"
    not_found = f"did not find {', '.join(missing)}" if missing else "found all that it replaces"
    if not found:
        raise ImportError(f"patch({library!r}) {not_found} in {library} {installed}")
    if missing or installed not in tried:
        message = f"patch({library!r}), which was tried with {', '.join(tried)}, {not_found} in {library} {installed}"
        warnings.warn(message, stacklevel=3)
    return found


def _check_backend(library: str) -> None:
    needs = f"patch({library!r}) needs Keras on JAX: set KERAS_BACKEND=jax before keras is imported"
    try:
        backend = import_module("keras").config.backend()
    except ImportError as error:  # that of another backend, which is not installed
        raise ImportError(f"{needs} ({error})") from error
    if backend != "jax":
        raise RuntimeError(f"{needs}, its backend is {backend!r}")


def _checked(target: Target) -> Function:
    """The function. Raises an error if it, or the class that keeps it, is not as in the versions that were tried."""
    module = import_module(target.module)
    original: Function = getattr(module, target.function)
    theirs, ours = (", ".join(signature(function).parameters) for function in (original, target.replacement))
    if theirs != ours:
        raise TypeError(f"its parameters must be {ours}, got {theirs}")
    if target.kept_by:
        owner, attribute = target.kept_by
        if attribute not in getattr(module, owner).__init__.__code__.co_names:
            raise AttributeError(f"{owner} has no attribute {attribute}")
    return original


def _calling(adapter: Function) -> Function:
    """A new function for each target, because several targets have the same adapter, and each has its own original."""
    return lambda *args, **kwargs: adapter(*args, **kwargs)


def _switch(found: Found, on: bool) -> None:
    """Replaces the functions in all modules and in what keeps them, or restores them."""
    new = {id(pair[not on]): pair[on] for pair in found.values()}
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            for name, value in list(vars(module).items()):
                if id(value) in new:
                    setattr(module, name, new[id(value)])
    for target, pair in found.items():
        if target.kept_by:
            owner, attribute = getattr(sys.modules[target.module], target.kept_by[0]), target.kept_by[1]
            if on:
                setattr(owner, attribute, _over_instances(attribute, *pair))
            else:
                delattr(owner, attribute)
    jax.clear_caches()


def _over_instances(attribute: str, original: Function, replacement: Function) -> property:
    """For a class: its instances have the replacement, and each of them stores the original under the same name."""
    return property(lambda _: replacement, lambda instance, _: vars(instance).update({attribute: original}))
