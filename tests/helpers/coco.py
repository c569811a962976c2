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
