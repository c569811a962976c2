"""Converts parameters of Flax models from and to PyTorch state dicts."""

import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jax_dcn import _validation
from jax_dcn.interop import generators, names, regions
from jax_dcn.interop.checkpoint import to_array

Tree = TypeVar("Tree")
# Counters of batch norms, and the quotients that RT-DETRv2 and D-FINE keep.
_NOT_PARAMETERS = ("num_batches_tracked", "n_points_scale", "num_points_scale")
Style = Literal["mmcv", "detectron2", "dcnv2", "maskrcnn_benchmark", "tvdcn", "birefnet"]


def from_torch(
    state_dict: Mapping[str, Any],
    like: Tree,
    *,
    module: str = "",
    strict: bool = True,
    output_size: int | Sequence[int] | None = None,
) -> Tree:
    """Fills the parameters of a Flax model, or a layer, with the values of a PyTorch state dict.

    Parameters are found by name:

    - A parameter of ``like`` has the name of the modules that lead to it: ``layer1_0`` or ``layer1/0`` is ``layer1.0``,
      and an item of a ``Sequential`` is its number. ``kernel`` and ``scale`` are ``weight``, ``mean`` and ``var`` are
      ``running_mean`` and ``running_var``.
    - The offset convolution of a layer ``conv2`` is ``conv2.conv_offset`` (mmcv, mmdet), ``conv2_offset`` (Detectron2,
      older mmdet), ``conv2.conv_offset_mask`` (DCNv2, CenterNet, EDVR) or ``conv2.offset`` (maskrcnn-benchmark, where
      the weight is ``conv2.conv``). torchvision's ``DeformConv2d`` has none: use a layer without a branch. tvdcn's
      ``conv2.offset_generator`` and ``conv2.mask_generator``, in one to three dimensions, become one convolution. So do
      ``conv2.offset_conv`` and ``conv2.modulator_conv`` of BiRefNet and ALIKED, where the weight is
      ``conv2.regular_conv``.
    - The layers of multi-scale deformable attention, DCNv3 and DCNv4 have the same sub-layers as here, with three
      exceptions: DCNv3's ``dw_conv`` is ``dw_conv.0``, its ``dw_norm`` is ``dw_conv.1.1`` (``dw_conv.1.0`` if it is a
      batch norm), and ``center_feature_scale_proj`` is two arrays with ``_weight`` and ``_bias`` added to this name.
      ``n_points_scale`` and ``num_points_scale``, constants of RT-DETRv2 and D-FINE, are ignored.
    - The branch of a pooling layer is ``offset_fc``, ``offset_mask_fc``, or both ``offset_fc`` and ``mask_fc``, which
      become one branch with the ``hidden_features`` of both.

    OIHW weights become HWIO, weights of dense layers are transposed, and the branch of a pooling layer is reordered for
    this package's order of bins. The order of offsets and masks is the same everywhere. Weights of transposed
    convolutions look like those of convolutions, and must be converted by hand.

    Args:
      state_dict: Arrays or tensors by name, as :func:`load` returns them.
      like: The tree of parameters to fill, of arrays or ``jax.ShapeDtypeStruct``: Linen variables or one collection of
        them, an NNX module or state.
      module: The name of ``like`` in the state dict: "backbone" reads ``backbone.conv1.weight``.
      strict: Whether parameters that the state dict lacks, and arrays of the module that ``like`` lacks, are errors. If
        not, the former keep their values and the latter are ignored, with a warning. Running statistics and batch
        counters may always be missing in ``like``, except the statistics of a DCNv3's batch norm, which distinguish it
        from a layer norm.
      output_size: The bins of pooling layers with an "fc" branch; only needed if there are not as many rows as columns.

    Returns:
      A tree like ``like``, with its dtypes. Leaves that are not of a floating type, such as random keys, are kept.

    Raises:
      TypeError: For a state dict that is not a mapping, or a tree with leaves that are not arrays.
      ValueError: If names are missing, unexpected or ambiguous, or a shape does not fit.

    Example:
      >>> import jax, jax.numpy as jnp, numpy as np
      >>> from jax_dcn import interop
      >>> from jax_dcn.linen import DeformConv
      >>> state_dict = {
      ...     "conv2.weight": np.ones((8, 4, 3, 3)),
      ...     "conv2.conv_offset.weight": np.zeros((27, 4, 3, 3)),
      ...     "conv2.conv_offset.bias": np.zeros(27),
      ... }
      >>> layer = DeformConv(8, (3, 3), padding=1, use_bias=False)
      >>> shapes = jax.eval_shape(layer.init, jax.random.key(0), jnp.ones((1, 6, 6, 4)))
      >>> variables = interop.from_torch(state_dict, shapes, module="conv2")
      >>> float(layer.apply(variables, jnp.ones((1, 6, 6, 4)))[0, 3, 3, 0])
      18.0
    """
    source = _Source(state_dict, module)
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    if not all(keys and hasattr(leaf, "shape") for keys, leaf in leaves):
        raise TypeError(f"like must be a tree of arrays, as a Linen module's variables are, got {type(like).__name__}")
    paths = [names.path_of(keys) for keys, _ in leaves]
    layers = _DeformableLayers(paths)
    find = _finder(source, layers, {path: leaf for path, (_, leaf) in zip(paths, leaves, strict=True)}, output_size)
    values, missing = [], []
    for path, (_, leaf) in zip(paths, leaves, strict=True):
        is_only_shape = isinstance(leaf, jax.ShapeDtypeStruct)
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            if is_only_shape:
                raise ValueError(f"like must have a value for {'/'.join(path)}, which no state dict has")
            values.append(leaf)
            continue
        taker, found = find(path)
        if found is None:
            missing.append(source.likeliest(layers.keys(path, module)))
            if not strict and is_only_shape:
                raise ValueError(f"state_dict lacks {missing[-1]!r}, and like has no value for it either")
            values.append(leaf)
            continue
        keys, array = found
        if path[:-1] in layers.layer_norms:
            source.check_layer_norm(keys[0], path)
        source.take(keys, taker)
        values.append(_fitted(keys[0], array, path, leaf))
    unexpected = source.left(statistics=any(path[-1] in ("mean", "var") for path in paths))
    if missing or unexpected:
        message = f"state_dict does not fit the model: missing {_some(missing)}; unexpected {_some(unexpected)}"
        if strict:
            raise ValueError(f"{message} (strict=False leaves them out)")
        warnings.warn(message, stacklevel=2)
    return jax.tree_util.tree_unflatten(structure, values)


def to_torch(
    tree: Any, *, style: Style = "mmcv", module: str = "", output_size: int | Sequence[int] | None = None
) -> dict[str, np.ndarray]:
    """Converts the parameters of a Flax model, or a layer, to a PyTorch state dict: the inverse of :func:`from_torch`.

    Args:
      tree: Linen variables or one collection of them, an NNX module or state.
      style: The library whose names deformable layers get: "mmcv", "detectron2", "dcnv2" (also for CenterNet and
        EDVR), "maskrcnn_benchmark", or for layers of one offset group "tvdcn" or "birefnet" (also for ALIKED). In all
        of them, a layer without a branch fits torchvision's ``DeformConv2d``.
      module: A prefix of all names.
      output_size: The bins of pooling layers with an "fc" branch; only needed if there are not as many rows as columns.

    Returns:
      NumPy arrays by name. Convert them to tensors for ``load_state_dict``; ``safetensors.numpy.save_file`` takes them
      unchanged.

    Raises:
      ValueError: For an unknown style, for names that clash, in a style other than "dcnv2" for a modulated pooling
        layer whose branch predicts offsets and masks from the same hidden features, or in the styles "tvdcn" and
        "birefnet" for a layer of several offset groups, or of one axis with two outputs for each tap, which are
        ambiguous.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax_dcn import interop
      >>> from jax_dcn.linen import DeformConv
      >>> variables = DeformConv(8, (3, 3)).init(jax.random.key(0), jnp.ones((1, 6, 6, 4)))
      >>> for name, array in interop.to_torch(variables, style="detectron2", module="res3.0.conv2").items():
      ...     print(name, array.shape)
      res3.0.conv2.bias (8,)
      res3.0.conv2_offset.bias (27,)
      res3.0.conv2_offset.weight (27, 4, 3, 3)
      res3.0.conv2.weight (8, 4, 3, 3)
    """
    _validation.choice("style", style, tuple(names.STYLES))
    library = names.STYLES[style]
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    arrays = {names.path_of(keys): np.asarray(leaf) for keys, leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact)}
    layers = _DeformableLayers(list(arrays))
    if style == "detectron2" and () in layers.convs and not module:
        raise ValueError("module must be given in the style 'detectron2', whose offsets' name begins with the layer's")
    state: dict[str, np.ndarray] = {}
    branches: dict[names.Path, dict[tuple[int, str], np.ndarray]] = {}
    of_convs: dict[names.Path, dict[str, np.ndarray]] = {}
    for path, array in arrays.items():
        if library.conv_mask and path[-2:-1] == ("conv_offset",):
            of_convs.setdefault(path[:-2], {})[path[-1]] = torch_layout(path[-1], array)
            continue
        if layers.in_branch(path):
            branch = branches.setdefault(layers.owner(path), {})
            branch[layers.index(path), path[-1]] = torch_layout(path[-1], array)
            continue
        key = layers.keys(path, module, style)[0]
        if key in state:
            raise ValueError(f"{'/'.join(path)} and another parameter would both be called {key!r}")
        state[key] = torch_layout(path[-1], array)
    for owner, parameters in branches.items():
        name = names.modules(owner, module)[0]
        written = regions.write(parameters, library, _pair(output_size))
        state |= {names.joined(name, key): array for key, array in written.items()}
    for owner, of_conv in of_convs.items():
        state |= generators.write(of_conv, names.modules(owner, module)[0], library)
    return {key: np.array(array, order="C") for key, array in state.items()}


class _Source:
    """A state dict that records which arrays were used."""

    def __init__(self, state_dict: Mapping[str, Any], module: str) -> None:
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"state_dict must be a mapping of names to arrays, got {type(state_dict).__name__}")
        self.module = module
        self._state_dict = state_dict
        self._modules = {name for key in state_dict for name in _modules(key)}
        self._taken: dict[str, names.Path] = {}
        # In Detectron2, the offset convolution is not inside the layer.
        self._prefixes = (f"{module}.", f"{module}_offset.") if module else ("",)
        if module and not any(key.startswith(self._prefixes) for key in state_dict):
            elsewhere = sorted({key.partition(f".{module}.")[0] for key in state_dict if f".{module}." in key})
            hint = f"did you mean {elsewhere[0]}.{module}?" if elsewhere else f"it has {_some(list(state_dict))}"
            raise ValueError(f"state_dict has nothing of module={module!r}: {hint}")

    def find(self, keys: Sequence[str]) -> regions.Found | None:
        """The one of these names that the state dict has, and its array."""
        found = [key for key in dict.fromkeys(keys) if key in self._state_dict]
        if len(found) > 1:
            raise ValueError(f"state_dict has {' and '.join(map(repr, found))}, which name the same parameter")
        return (tuple(found), to_array(found[0], self._state_dict[found[0]])) if found else None

    def likeliest(self, keys: Sequence[str]) -> str:
        """Which of these missing names is inside the most modules that the state dict has, for a message."""
        return max(keys, key=lambda key: sum(module in self._modules for module in _modules(key)))

    def take(self, keys: Sequence[str], taker: names.Path) -> None:
        for key in keys:
            if self._taken.setdefault(key, taker) != taker:
                raise ValueError(f"{key!r} would be both {'/'.join(self._taken[key])} and {'/'.join(taker)}")

    def check_layer_norm(self, key: str, path: names.Path) -> None:
        """Raises ValueError if the parameter of this name is one of a batch norm, which has running statistics."""
        statistics = key.rpartition(".")[0] + ".running_mean"
        if statistics in self._state_dict:
            raise ValueError(
                f"state_dict has {statistics!r}, so {key!r} is of a batch norm, but like has no statistics for "
                f"{'/'.join(path[:-1])}: give the DCNv3 norm='batch_norm', and pass its statistics with its parameters"
            )

    def left(self, statistics: bool) -> list[str]:
        """The unused arrays of the module, also without running statistics if the model has none."""
        optional = (*_NOT_PARAMETERS, *(() if statistics else ("running_mean", "running_var")))
        left = (name for name in self._state_dict if name.startswith(self._prefixes) and name not in self._taken)
        return [name for name in left if name.rpartition(".")[2] not in optional]


class _DeformableLayers:
    """The paths of a model that belong to deformable layers, whose names differ between libraries."""

    def __init__(self, paths: Sequence[names.Path]) -> None:
        self.convs = {path[: path.index("conv_offset")] for path in paths if "conv_offset" in path}
        self.pools = {self.owner(path) for path in paths if self.in_branch(path)}
        self.dcnv3s = _owners({"dw_norm", "offset", "mask"}, paths)
        self.dcns = self.dcnv3s | _owners({"offset_mask"}, paths)
        norms = {path[:-1] for path in paths if path[-2:-1] == ("dw_norm",) and path[:-2] in self.dcnv3s}
        self.layer_norms = norms - {path[:-1] for path in paths if path[-1] in ("mean", "var")}

    def in_branch(self, path: names.Path) -> bool:
        """Whether the path is in the `Sequential` with which a pooling layer predicts offsets."""
        return "fc_offset" in path and path[-2].removeprefix("layers_").isdigit()

    def owner(self, path: names.Path) -> names.Path:
        return path[: path.index("fc_offset")]

    def index(self, path: names.Path) -> int:
        return int(path[-2].removeprefix("layers_"))

    def keys(self, path: names.Path, module: str, style: str | None = None) -> list[str]:
        """Possible names of a parameter in the state dict, most likely first."""
        styles = [names.STYLES[style]] if style else list(names.STYLES.values())
        owner, suffixes = path[:-1], [""]
        if owner[:-1] in self.dcns and owner[-1:] == ("center_feature_scale_proj",):  # parameters without a module
            return [f"{one}_{name}" for name in names.parameters(path[-1]) for one in names.modules(owner, module)]
        if owner[-1:] == ("conv_offset",):
            owner, suffixes = owner[:-1], [style.conv_offset for style in styles]
        elif owner in self.convs:
            suffixes = [style.conv for style in styles]
        elif owner[:-1] in self.dcnv3s and owner[-1:] == ("dw_conv",):
            suffixes = [".0"]
        elif owner[:-1] in self.dcnv3s and owner[-1:] == ("dw_norm",):
            # InternImage has a transposition before a layer norm.
            suffixes = [".1.1", ".1.0"] if owner in self.layer_norms else [".1.0", ".1.1"]
            owner = (*owner[:-1], "dw_conv")
        elif self.in_branch(path):
            owner = tuple("offset_fc" if name == "fc_offset" else name for name in owner)
        return [
            names.joined(names.with_suffix(one, suffix), name)
            for name in names.parameters(path[-1])
            for suffix in suffixes
            for one in names.modules(owner, module)
        ]


def _finder(
    source: _Source, layers: _DeformableLayers, leaves: Mapping[names.Path, Any], output_size: Any
) -> Callable[[names.Path], tuple[names.Path, regions.Found | None]]:
    """A function that finds the array of a parameter, and tells what takes its arrays from the state dict.

    That is the parameter itself or, where several of its arrays become one of this package, the layer.
    """
    bins = _pair(output_size)
    branches = {owner: regions.read(source.find, names.modules(owner, source.module), bins) for owner in layers.pools}
    generated = {
        path[:-2]: generators.read(source.find, names.modules(path[:-2], source.module), leaf.shape)
        for path, leaf in leaves.items()
        if path[-2:] == ("conv_offset", "kernel")
    }

    def find(path: names.Path) -> tuple[names.Path, regions.Found | None]:
        if layers.in_branch(path):
            owner = layers.owner(path)
            return owner, branches[owner].get((layers.index(path), path[-1]))
        if path[-2:-1] == ("conv_offset",) and generated.get(path[:-2]):
            return path[:-2], generated[path[:-2]].get(path[-1])
        return path, source.find(layers.keys(path, source.module))

    return find


def _owners(children: set[str], paths: Sequence[names.Path]) -> set[names.Path]:
    """The modules that have sub-modules of all these names."""
    found: dict[names.Path, set[str]] = {}
    for path in paths:
        found.setdefault(path[:-2], set()).update(path[-2:-1])
    return {owner for owner, names_of in found.items() if children <= names_of}


def _modules(key: str) -> Iterable[str]:
    """The modules that lead to a parameter: "a" and "a.b" for "a.b.weight"."""
    return itertools.accumulate(key.split(".")[:-1], "{}.{}".format)


def _pair(output_size: int | Sequence[int] | None) -> tuple[int, int] | None:
    return None if output_size is None else _validation.pair("output_size", output_size)


def _fitted(key: str, array: np.ndarray, path: names.Path, leaf: Any) -> jax.Array:
    value = flax_layout(path[-1], array)
    if value.shape != leaf.shape:
        raise ValueError(
            f"{key!r} has shape {array.shape}, of which {'/'.join(path)} would get {value.shape}, but it must be "
            f"{leaf.shape}{_advice(path, value.shape, leaf.shape)}"
        )
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise ValueError(f"{key!r} must be of a floating type, as {'/'.join(path)} is, got {array.dtype}")
    with np.errstate(over="ignore"):
        converted = value.astype(dtype)
    if (np.isinf(converted) & np.isfinite(value)).any():
        raise ValueError(f"{key!r} has values that {dtype}, the type of {'/'.join(path)}, cannot hold")
    return jnp.asarray(converted)


def _advice(path: names.Path, found: Sequence[int], expected: Sequence[int]) -> str:
    """What a layer should have, where a shape does not fit; only for two axes, because a bias does not tell them."""
    if "fc_offset" in path:
        return ": see the layer's modulated, hidden_features and output_size"
    ratios = {(2, 3): "modulated=False", (3, 2): "modulated=True"}
    for (theirs, ours), remedy in ratios.items():
        if "conv_offset" in path and found[-1] * ours == expected[-1] * theirs:
            return f": the layer should have {remedy}"
    return ""


def flax_layout(name: str, array: np.ndarray) -> np.ndarray:
    if name != "kernel" or array.ndim < 2:
        return array
    return array.transpose(*range(2, array.ndim), 1, 0)


def torch_layout(name: str, array: np.ndarray) -> np.ndarray:
    if name != "kernel" or array.ndim < 2:
        return array
    return array.transpose(-1, -2, *range(array.ndim - 2))


def _some(keys: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(map(repr, keys[:most])) or "nothing"
    return shown + (f" and {len(keys) - most} more" if len(keys) > most else "")
