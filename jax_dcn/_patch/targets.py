"""The table of what `patch` replaces in other libraries, and of the versions that were tried."""

from operator import attrgetter
from typing import Any, NamedTuple

from jax_dcn._patch import adapters


class Library(NamedTuple):
    distribution: str  # its name for pip
    versions: tuple[str, ...]  # those that the tests have run with
    uses_keras: bool


class Target(NamedTuple):
    """A function of a library, and what replaces it."""

    library: str
    module: str
    function: str  # or Class.method
    replacement: adapters.Adapter

    def __str__(self) -> str:
        return f"{self.module}.{self.function}"

    def of(self, module: object) -> Any:
        """The function, of the module that has it."""
        return attrgetter(self.function)(module)


LIBRARIES = {
    "zeromodels": Library("zeromodels", ("1.3.6",), uses_keras=True),
    "keras_hub": Library("keras-hub", ("0.32.0",), uses_keras=True),
    "scenic": Library("scenic", ("0.0.1",), uses_keras=False),
    "jax": Library("jax", ("0.10.0", "0.10.2", "0.11.0"), uses_keras=False),
    "dm_pix": Library("dm-pix", ("0.4.5",), uses_keras=False),
    "optax": Library("optax", ("0.2.8",), uses_keras=False),
    "jax_raft": Library("jax-raft", ("0.1.1",), uses_keras=False),
}
ZERO, CORE, SCENIC = "zeromodels.models", "ms_deform_attn_core", "scenic.projects.baselines"
D_FINE = "keras_hub.src.models.d_fine.d_fine_attention"
TARGETS = (
    Target("zeromodels", f"{ZERO}.rf_detr.rf_detr_layers", CORE, adapters.channels_first),
    Target("zeromodels", f"{ZERO}.rt_detr.rt_detr_layers", CORE, adapters.channels_first),
    Target("zeromodels", f"{ZERO}.rt_detr_v2.rt_detr_v2_layers", CORE, adapters.channels_first),
    Target("zeromodels", f"{ZERO}.grounding_dino.grounding_dino_layers", CORE, adapters.channels_first),
    Target("zeromodels", f"{ZERO}.dfine.dfine_layers", "ms_deform_attn_core_variable", adapters.points_of_levels),
    Target("zeromodels", f"{ZERO}.mask2former.mask2former_layers", "bilinear_sample", adapters.samples),
    Target("zeromodels", f"{ZERO}.oneformer.oneformer_layers", "bilinear_sample", adapters.samples),
    Target("zeromodels", f"{ZERO}.sam3.sam3_layers", "SAM3GeometryEncoder._roi_align", adapters.sam3_roi_align),
    Target("keras_hub", D_FINE, "multi_scale_deformable_attention_v2", adapters.keras_hub),
    Target("scenic", f"{SCENIC}.deformable_detr.attention", "deform_attn_sampling_fn", adapters.scenic_attention),
    Target("scenic", f"{SCENIC}.centernet.modeling.roi_align", "_roi_align_einsum", adapters.scenic_roi_align),
    Target("jax", "jax.scipy.ndimage", "map_coordinates", adapters.jax_scipy),
    Target("dm_pix", "dm_pix._src.interpolation", "flat_nd_linear_interpolate", adapters.dm_pix),
    Target("optax", "optax.assignment", "hungarian_algorithm", adapters.optax),
    Target("jax_raft", "jax_raft.model", "grid_sample", adapters.jax_raft),
)
BY_NAME = {str(target): target for target in TARGETS}
