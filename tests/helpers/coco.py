"""Data sets in COCO's format."""

import json

from PIL import Image


def write(folder, sizes, objects, names=("cat",), **fields):
    """Writes images of noise, 1.png, 2.png and so on, and annotations.json; returns its path and the folder.

    sizes: (width, height) of each image; objects: (image, category, [x, y, width, height]), numbered from 1; fields:
    others of all images.
    """
    images, annotations = [], []
    for number, (width, height) in enumerate(sizes, 1):
        name = f"{number}.png"
        Image.effect_noise((width, height), 90).save(folder / name)
        images.append({"id": number, "file_name": name, "width": width, "height": height} | fields)
    for number, (image, category, box) in enumerate(objects, 1):
        annotations.append({"id": number, "image_id": image, "category_id": category, "bbox": box})
    categories = [{"id": number, "name": name} for number, name in enumerate(names, 1)]
    path = folder / "annotations.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return path, folder


def write_squares(folder, sizes, objects, colours):
    """As `write`, with each object as a square of the colour that its category is named after."""
    write(folder, sizes, objects, colours)
    for image, category, (x, y, side, _) in objects:
        with Image.open(folder / f"{image}.png") as file:
            picture = file.convert("RGB")
        picture.paste(colours[category - 1], (x, y, x + side, y + side))
        picture.save(folder / f"{image}.png")
