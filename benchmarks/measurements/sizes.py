"""Changes of the sizes of any operator's shape, by the names of its fields."""

OF_PIXELS = ("batch", "images", "height", "width", "size", "sizes", "queries", "rois")
FEW = 8


def with_batch(shape, batch):
    """The shape with so many images. Each has as many regions as before."""
    if "rois" in shape._fields:
        return shape._replace(images=batch, rois=shape.rois * batch // shape.images)
    return shape._replace(batch=batch)


def small(shape):
    """The shape with few pixels and as many channels, to try a benchmark."""
    points = {"points": few(shape.points)} if isinstance(getattr(shape, "points", None), tuple) else {}
    return shape._replace(**{name: few(getattr(shape, name)) for name in OF_PIXELS if name in shape._fields}, **points)


def few(size):
    return tuple(map(few, size)) if isinstance(size, tuple) else size and min(size, FEW)
