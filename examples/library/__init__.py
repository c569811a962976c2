"""A library, not an example: what detectors of several examples share."""
