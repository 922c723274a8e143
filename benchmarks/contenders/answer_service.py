"""The model `churn` outside the database: `python answer_service.py keras | onnx | pandas DSN`.

keras, onnx: an HTTP service (FastAPI) that answers for a row; it prints its port. pandas: it answers for all rows of the table,
and ends. `keras` and `pandas` ask the exported .keras file, which takes raw columns. `onnx` encodes the rows by the
version's transform and asks ONNX Runtime, one thread, for the dense layers.
"""

import os
import socket
import sys
import tempfile

import numpy as np
import psycopg2

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


class OfKeras:
    """The exported file."""

    def __init__(self, cursor):
        import keras

        cursor.execute("SELECT madlib.mop_export_model('churn', 1)")
        with tempfile.NamedTemporaryFile(suffix=".keras") as file:
            file.write(cursor.fetchone()[0])
            file.flush()
            self.model = keras.saving.load_model(file.name)

    def __call__(self, columns):
        """{column: values} -> the probabilities [rows, classes]."""
        import tensorflow as tf

        inputs = {}
        for tensor in self.model.inputs:
            values, name = columns[tensor.name], tensor.name
            inputs[name] = tf.constant(values if tensor.dtype == "string" else np.array(values, tensor.dtype))
        return np.asarray(self.model(inputs, training=False)["probabilities"])


class OfOnnx:
    """The dense layers of the version's row in ONNX Runtime."""

    def __init__(self, cursor):
        import onnxruntime

        cursor.execute("SELECT transform, model_arch, model_weights FROM churn WHERE version = 1")
        transform, architecture, weights = cursor.fetchone()
        (packed,) = transform["inputs"]
        self.features = [(f["type"], f["name"], f["parameters"]) for f in packed["parameters"]["features"]]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        graph = dense_graph(architecture, np.frombuffer(weights, "<f4"), packed["parameters"]["shape"][0])
        self.session = onnxruntime.InferenceSession(graph, options)

    def __call__(self, columns):
        parts = []
        for kind, name, p in self.features:
            values = columns[name]
            if kind == "number":
                numbers = np.array([p["fill"] if v is None else v for v in values], "f8")
                parts.append(np.clip((numbers - p["center"]) * p["factor"], -30, 30)[:, None])
            elif kind == "one_hot_category":
                known = {value: number for number, value in enumerate(p["values"], 1)}
                one_hot = np.zeros((len(values), 1 + len(known) + p["null"]))
                one_hot[np.arange(len(values)), [known.get(value, 0) for value in values]] = 1
                parts.append(one_hot)
            else:
                sys.exit(f"the benchmark's table has a feature {kind}, which this service does not encode")
        return self.session.run(None, {"x": np.concatenate(parts, 1, dtype="f4")})[0]


def dense_graph(architecture, weights, width):
    """The bytes of an ONNX graph of the Dense layers of a chain of layers."""
    from onnx import TensorProto, helper, numpy_helper

    nodes, arrays, last, place = [], [], "x", 0
    for number, layer in enumerate(architecture["config"]["layers"]):
        if layer["class_name"] in ("InputLayer", "Dropout"):
            continue
        if layer["class_name"] != "Dense":
            sys.exit(f"the benchmark's net has a layer {layer['class_name']}, which this service does not compute")
        units, activation = layer["config"]["units"], layer["config"]["activation"]
        for name, shape in (("kernel", (width, units)), ("bias", (units,))):
            size = int(np.prod(shape))
            arrays.append(numpy_helper.from_array(weights[place : place + size].reshape(shape), f"{name}{number}"))
            place += size
        nodes.append(helper.make_node("Gemm", [last, f"kernel{number}", f"bias{number}"], [f"sum{number}"]))
        nodes.append(helper.make_node(activation.title(), [f"sum{number}"], [f"out{number}"]))
        last, width = f"out{number}", units
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, None])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, [None, None])],
        arrays,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def serve(model, classes):
    import uvicorn
    from fastapi import FastAPI, Request

    app = FastAPI()

    @app.post("/")
    async def answer(request: Request):
        row = await request.json()
        (shares,) = model({name: [value] for name, value in row.items()}).tolist()
        best = max(range(len(shares)), key=shares.__getitem__)
        return {"prediction": classes[best], "probability": shares[best], "probabilities": dict(zip(classes, shares))}

    listener = socket.socket(
        socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )  # (asyncio sends at once for this protocol)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


def main():
    kind, dsn = sys.argv[1:]
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        model = OfOnnx(cursor) if kind == "onnx" else OfKeras(cursor)
        cursor.execute("SELECT DISTINCT churn FROM customers ORDER BY 1")
        classes = [value for (value,) in cursor.fetchall()]
        if kind == "pandas":
            import pandas

            cursor.execute("SELECT * FROM customers")
            rows = pandas.DataFrame(cursor.fetchall(), columns=[column.name for column in cursor.description])
            rows["prediction"] = [classes[k] for k in model(rows.to_dict("list")).argmax(1)]
    if kind != "pandas":
        serve(model, classes)


if __name__ == "__main__":
    main()
