"""Prints the GPUs that TensorFlow finds, one description a line: ``python -m mop_udf.pool.gpus``."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def describe() -> list[str]:
    """Descriptions of the GPUs, with TensorFlow's names."""
    import tensorflow as tf

    return [
        f"{device.name}: {tf.config.experimental.get_device_details(device).get('device_name', 'GPU')}"
        for device in tf.config.list_physical_devices("GPU")
    ]


if __name__ == "__main__":
    print("\n".join(describe()))
