"""`framework`: the kernels for the framework that Keras uses in this process.

Each framework has a package on_NAME with the same names; `on_tensorflow` documents them. No other module imports a
framework, except `mop_udf.pool.gpus`.
"""

import importlib

import keras

framework = importlib.import_module(f"mop_udf.kernels.on_{keras.backend.backend()}")
