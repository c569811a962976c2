"""A picture of the sampling locations of deformable pooling."""

from pathlib import Path

from matplotlib.figure import Figure

from examples.digits_library import scenes
from examples.digits_library.backbone import STRIDE
from examples.digits_library.evaluate import SIZE_LIMITS
from examples.digits_library.pictures import clearest_object, zoom
from examples.library.boxes import Boxes
from jax_dcn import viz

from .model import SAMPLES_PER_PART, TRANS_STD, as_rois
from .sampling import Moves, region_of


def draw_bins(path: Path, batch: scenes.Scenes, found: Moves) -> None:
    """Draws the sampling points of all bins, for the class and for the box, of a small, a medium and a large object."""
    figure = Figure(figsize=(13.5, 9.6), layout="constrained")
    axes = figure.subplots(2, len(SIZE_LIMITS), squeeze=False)
    for size, name in enumerate(SIZE_LIMITS):
        image, which = clearest_object(batch, size)
        label, true_box = int(batch.labels[image, which]), batch.boxes[image, which]
        region = region_of(found, image, true_box, label)
        roi = as_rois(Boxes(*(part[image, region] for part in found.regions)))
        shifts = found.of_class[image, region, :, :, label], found.of_box[image, region]
        titles = f"is it a {scenes.CLASSES[label]}?", "where are its sides?"
        for panel, title, shift in zip(axes[:, size], titles, shifts, strict=True):
            viz.plot_bins(
                roi,
                shift,
                output_size=len(shift),
                spatial_scale=1 / STRIDE,
                sample_per_part=SAMPLES_PER_PART,
                trans_std=TRANS_STD,
                image=batch.images[image],
                ax=panel,
            )
            panel.set_axis_off()
            zoom(panel, true_box, batch.images.shape[1], window=1.8 * (true_box[2:] - true_box[:2]).max())
            panel.set_title(f"{name} object: {title}", fontsize=14)
    figure.suptitle("The bins of a region, and the points that each averages: moved as learnt", fontsize=16)
    figure.savefig(path, dpi=90)
