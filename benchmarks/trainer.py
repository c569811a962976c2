"""`python -m benchmarks.trainer`: the limits of the trainers: data of COCO's size, loading of images, and many steps.

start: reads the annotations of 118,000 images and 860,000 boxes, as a command that trains does, until the first batch.
loading: makes batches of images of 640 x 480 pixels by threads and by processes.
loop: runs 20,000 steps that do almost nothing.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from benchmarks.reports.formatting import markdown
from benchmarks.support.machine import cores, processor
from benchmarks.support.memory import kibibytes
from benchmarks.support.sources import commit
from examples.detr.data import Loading, training_batches
from examples.library.coco import read
from examples.library.loop import Work, fit
from examples.library.options import read_data
from examples.library.recipe import Recipe

IMAGES, OBJECTS, CLASSES = 118_000, 860_000, 80
BATCHES, STEPS = 50, 20_000
FILES = 100  # different ones; the others are links to them
CORNERS = 22  # of a polygon, with which the file has about the size of COCO's


def write(folder: Path, images: int, objects: int, width: int, height: int) -> None:
    """Writes images, and annotations in COCO's format with a box and an ellipse each."""
    rng = np.random.default_rng(0)
    for number in range(images):
        path = folder / f"{number}.jpg"
        if number < FILES:
            coarse = Image.fromarray(rng.integers(0, 256, (height // 16, width // 16, 3), np.uint8))
            coarse.resize((width, height), Image.Resampling.BICUBIC).save(path, quality=95)
        else:
            os.link(folder / f"{number % FILES}.jpg", path)
    size = np.array([width, height])
    corners, sides = rng.uniform(0, 0.7, (objects, 2)) * size, rng.uniform(0.1, 0.3, (objects, 2)) * size
    turn = np.linspace(0, 2 * np.pi, CORNERS, endpoint=False)
    ellipse = (1 + np.stack([np.cos(turn), np.sin(turn)], -1)) / 2
    annotations = [
        {
            "id": number,
            "image_id": int(rng.integers(images)),
            "category_id": int(rng.integers(CLASSES)),
            "bbox": [*corner.round(2), *side.round(2)],
            "area": side.prod().round(2),
            "segmentation": [(corner + side * ellipse).round(2).ravel().tolist()],
            "iscrowd": 0,
        }
        for number, (corner, side) in enumerate(zip(corners, sides, strict=True))
    ]
    files = [{"id": n, "file_name": f"{n}.jpg", "width": width, "height": height} for n in range(images)]
    categories = [{"id": number, "name": f"class {number}"} for number in range(CLASSES)]
    content = {"images": files, "annotations": annotations, "categories": categories}
    (folder / "annotations.json").write_text(json.dumps(content))


def start(folder: Path, masks: bool) -> list[str]:
    """The size of the annotations, the seconds and seconds of a core until the first batch, and the largest memory."""
    began, used = time.perf_counter(), time.process_time()
    files = {"annotations": folder / "annotations.json", "images": folder, "validation": None}
    settings = dict.fromkeys(("evaluate_only", "objects", "background", "no_mirror"))
    dataset, _ = read_data(argparse.Namespace(**files, **settings), masks)
    next(training_batches(dataset, Loading(((64, 64),), batch_size=16), range(1)))
    seconds = time.perf_counter() - began, time.process_time() - used
    return [f"{files['annotations'].stat().st_size / 1e6:.0f}", *(f"{one:.1f}" for one in seconds), gibibytes("VmHWM")]


def loading(folder: Path) -> list[list[str]]:
    """Images per second and, in brackets, per second of a core, by threads and processes."""
    dataset = read(folder / "annotations.json", folder)
    rows = []
    for workers in (1, 2):
        found = []
        for processes in (False, True):
            settings = Loading(((640, 640),), batch_size=4, workers=workers, processes=processes)
            made = training_batches(dataset, settings, range(BATCHES + 4 * workers))
            for _ in islice(made, 2 * workers):
                pass
            began, used = time.perf_counter(), seconds_of_cores()
            count = 4 * sum(1 for _ in islice(made, BATCHES))
            per_core = count / (seconds_of_cores() - used)
            found.append(f"{count / (time.perf_counter() - began):.1f} ({per_core:.1f})")
            made.close()
        rows.append([str(workers), *found])
    return rows


def seconds_of_cores() -> float:
    """What this process and the ones that it has started, which must still run, have used."""
    ticks = os.sysconf("SC_CLK_TCK")
    others = [Path(f"/proc/{one.pid}/stat").read_text() for one in multiprocessing.active_children()]
    return time.process_time() + sum(sum(map(int, one.rsplit(") ")[1].split()[11:13])) / ticks for one in others)


def loop(folder: Path) -> list[list[str]]:
    """Milliseconds per step, memory, and the size of a checkpoint, for each fifth of the steps."""
    rows = []

    @jax.jit
    def step(state, batch):
        return {"sum": state["sum"] + batch}, {"loss": state["sum"]}

    def evaluate(state, count, scores):
        size = sum(file.stat().st_size for file in (folder / "checkpoints" / str(count)).rglob("*"))
        rows.append([f"{count:,}", gibibytes("VmRSS"), f"{size / 1e3:.2f}"])
        return {}

    begin = {"sum": jnp.zeros(())}
    recipe = Recipe(STEPS, checkpoint_every=1000, evaluate_every=STEPS // 5)
    found = fit(Work(step, lambda: begin, begin, partial(map, float), evaluate), recipe, folder)
    times = np.reshape(found.log.column("milliseconds"), (5, -1))
    return [[row[0], f"{np.median(part):.3f}", *row[1:]] for row, part in zip(rows, times, strict=True)]


def gibibytes(field: str) -> str:
    """The memory of this process, as of `kibibytes`."""
    return f"{kibibytes(field) / 2**20:.3f}"


def main() -> None:
    """Prints the table of one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["start", "loading", "loop"])
    parser.add_argument("--masks", action="store_true", help="start as for a model with masks")
    options = parser.parse_args()
    print(f"{processor()}, {cores()} cores, commit {commit()}\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.part == "start":
            with ProcessPoolExecutor(1) as pool:  # whose memory is not that of this process
                pool.submit(write, folder, IMAGES, OBJECTS, 640, 480).result()
            rows = [["MB", "seconds", "of a core", "largest GiB"], start(folder, options.masks)]
        elif options.part == "loading":
            write(folder, FILES, 7 * FILES, 640, 480)
            rows = [["workers", "threads: images/s (per core)", "processes"], *loading(folder)]
        else:
            rows = [["steps", "ms/step", "GiB", "kB of a checkpoint"], *loop(folder)]
    print(markdown(rows))


if __name__ == "__main__":
    main()
