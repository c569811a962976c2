"""Finding scanned digits in photographs: the data, training and scores that the detectors of the examples share."""
