"""`own`: what kernels need of the framework that Keras works with in this process.

Each framework has a package on_NAME here, with the same names; `on_tensorflow` says what they do. Nothing else imports
a framework, but for `mop_udf.gpus`.
"""

import importlib

import keras

framework = importlib.import_module(f"mop_udf.kernels.on_{keras.backend.backend()}")
