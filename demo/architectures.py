"""The demo's two architectures as the JSON that Keras writes (Model.to_json). demo.sql holds its output."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras  # noqa: E402
from keras import layers  # noqa: E402

dense = keras.Sequential(
    [
        keras.Input((8, 8)),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
        layers.Dense(64, activation="relu"),
        layers.Dense(10, activation="softmax"),
    ],
    name="dense",
)
cnn = keras.Sequential(
    [
        keras.Input((8, 8)),
        layers.Reshape((8, 8, 1)),
        layers.Conv2D(16, 3, activation="relu"),
        layers.Conv2D(32, 3, activation="relu"),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        layers.Dropout(0.25),
        layers.Dense(64, activation="relu"),
        layers.Dense(10, activation="softmax"),
    ],
    name="cnn",
)
if __name__ == "__main__":
    for model in (dense, cnn):
        print(model.to_json())
