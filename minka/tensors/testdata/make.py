"""Writes numpy_types.safetensors with the format's own library (needs safetensors, numpy and ml_dtypes)."""
import pathlib

import ml_dtypes
import numpy as np
import safetensors.numpy

tensors = {
    "layer.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "layer.bias": np.array([1, -2], dtype=ml_dtypes.bfloat16),
    "half": np.array([[0.5]], dtype=np.float16),
    "step": np.array(7, dtype=np.int64),
    "mask": np.array([True, False, True]),
    "bytes": np.array([0, 255], dtype=np.uint8),
    "signed": np.array([-1, 127], dtype=np.int8),
    "spectrum": np.array([1 + 2j], dtype=np.complex64),
    "double": np.array([0.1], dtype=np.float64),
    "key": np.array([1, 2], dtype=np.uint32),
    "empty": np.zeros((0, 4), dtype=np.float32),
    "größe": np.array([3], dtype=np.uint16),
}
path = pathlib.Path(__file__).parent / "numpy_types.safetensors"
safetensors.numpy.save_file(tensors, path, metadata={"format": "np"})
