"""Runs ONNX models."""

import pytest


def run(model, *arrays):
    """The outputs of a model by onnxruntime, of its inputs in their order."""
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    return session.run(None, dict(zip(names, arrays, strict=True)))
