"""Attacks by architectures, parameter strings and files; each runs code, reads a file or takes memory if nothing refuses it."""

import base64
import codecs
import io
import json
import marshal
import os
import pickle
import zipfile

MB = 1 << 20


class Writes:
    """Unpickling it writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (exec, (f"open({self.path!r}, 'w').close()",))


def code(mark):
    """The serialized lambda of Keras that writes the file `mark`."""
    function = eval(f"lambda x: (open({mark!r}, 'w').close(), x)[1]")
    text = codecs.encode(marshal.dumps(function.__code__), "base64").decode("ascii")
    return {"class_name": "__lambda__", "config": {"value": text, "code": text, "defaults": None, "closure": None}}


def old_code(mark):
    return [code(mark)["config"]["code"], None, None]


def call(module, name, *arguments, **keywords):
    """An object that names a function of Python, with what to call it with."""
    return {
        "module": module,
        "class_name": "function",
        "config": name,
        "registered_name": "function",
        "arguments": [list(arguments), keywords],
    }


def made(module, name, /, **config):
    """An object that names a class of Python."""
    return {"module": module, "class_name": name, "config": config, "registered_name": None}


def layer(kind, /, module="keras.layers", **config):
    return {"module": module, "class_name": kind, "config": config, "registered_name": None}


def sequential(*layers, shape=(4,)):
    return {
        "module": "keras",
        "class_name": "Sequential",
        "registered_name": None,
        "config": {"name": "s", "layers": [layer("InputLayer", batch_shape=[None, *shape], name="i"), *layers]},
    }


def functional(inner, *arguments):
    """A model of `inner`, which is called with its input and `arguments`."""
    history = {
        "class_name": "__keras_tensor__",
        "config": {"shape": [None, 4], "dtype": "float32", "keras_history": ["i", 0, 0]},
    }
    return {
        "module": "keras.src.models.functional",
        "class_name": "Functional",
        "registered_name": "Functional",
        "config": {
            "name": "f",
            "trainable": True,
            "layers": [
                {**layer("InputLayer", batch_shape=[None, 4], name="i"), "name": "i", "inbound_nodes": []},
                {**inner, "name": "x", "inbound_nodes": [{"args": [history, *arguments], "kwargs": {}}]},
            ],
            "input_layers": [["i", 0, 0]],
            "output_layers": [["x", 0, 0]],
        },
    }


def code_layer(mark):
    return layer("Lambda", name="x", function=code(mark))


def dense(**config):
    return layer("Dense", name="d", units=3, **config)


def touch(mark):
    return f"open({mark!r}, 'w').close()"


# --- architectures: name -> (the JSON for a mark, a part of the message) ------------------------------------
ARCHITECTURES = {
    "lambda in a Sequential": (lambda m: sequential(code_layer(m)), "layer class 'Lambda' may not be loaded"),
    "lambda in a functional model": (lambda m: functional(code_layer(m)), "layer class 'Lambda'"),
    "lambda in a nested model": (lambda m: sequential(sequential(code_layer(m))), "layer class 'Lambda'"),
    "lambda nested in a functional model": (
        lambda m: functional({**sequential(code_layer(m)), "name": "x"}),
        "layer class 'Lambda'",
    ),
    "lambda within TimeDistributed": (
        lambda m: sequential(layer("TimeDistributed", name="t", layer=code_layer(m)), shape=(2, 4)),
        "layer class 'Lambda'",
    ),
    "lambda of Keras 2's spelling": (
        lambda m: {
            "class_name": "Sequential",
            "config": [
                {
                    "class_name": "Lambda",
                    "config": {"function": old_code(m), "function_type": "lambda", "batch_input_shape": [None, 4]},
                }
            ],
        },
        "layer class 'Lambda'",
    ),
    "lambda with keras' dotted name": (
        lambda m: sequential({**code_layer(m), "class_name": "keras.layers.Lambda"}),
        "layer class 'Lambda'",
    ),
    "lambda from a module of keras": (
        lambda m: sequential({**code_layer(m), "module": "keras.src.layers.core.lambda_layer"}),
        "layer class 'Lambda'",
    ),
    "lambda among stacked cells": (
        lambda m: sequential(
            layer("RNN", name="r", cell=layer("StackedRNNCells", cells=[layer("LSTMCell", units=2), code_layer(m)])),
            shape=(2, 4),
        ),
        "layer class 'Lambda'",
    ),
    "lambda as the backward layer": (
        lambda m: sequential(
            layer("Bidirectional", name="b", layer=layer("LSTM", units=2), backward_layer=code_layer(m)), shape=(2, 4)
        ),
        "layer class 'Lambda'",
    ),
    "code as an activation": (lambda m: sequential(dense(activation=code(m))), "activation '__lambda__'"),
    "code as an initializer": (lambda m: sequential(dense(kernel_initializer=code(m))), "is not in keras.initializers"),
    "code as an argument of a call": (
        lambda m: functional(
            {**dense(), "inbound_nodes": [], "config": {"units": 3, "name": "x", "arguments": code(m)}}
        ),
        "an object of class '__lambda__' is not allowed",
    ),
    "code that an operation applies": (
        lambda m: functional(made("keras.src.ops.core", "VectorizedMap", function=code(m))),
        "operation 'VectorizedMap' of .* may not be loaded",
    ),
    "code that an operation is called with": (
        lambda m: functional(made("keras.src.ops.core", "Map"), code(m)),
        "operation 'Map' of .* may not be loaded",
    ),
    "code as an argument of an operation": (
        lambda m: functional(made("keras.src.ops.numpy", "Mean", axis=code(m))),
        "operation Mean has an argument that is not plain data",
    ),
    "code among numbers that are added": (
        lambda m: functional(made("keras.src.ops.numpy", "Add"), code(m)),
        "'__lambda__' is not allowed",
    ),
    "code inside an array of numbers": (
        lambda m: functional(
            made("keras.src.ops.numpy", "Add"),
            {"class_name": "__numpy__", "config": {"dtype": "float32", "value": [code(m)]}},
        ),
        "'__numpy__' is not allowed",
    ),
    "os.mkfifo as an operation": (lambda m: functional(made("os", "mkfifo", path=m)), "module 'os'"),
    "an operation as a layer of a Sequential": (
        lambda m: sequential(made("keras.src.ops.core", "Map", f=code(m))),
        "is an operation, not a layer",
    ),
    "code inside a tuple": (
        lambda m: sequential(dense(extra={"class_name": "__tuple__", "items": [1, code(m)]})),
        "'__lambda__' is not allowed",
    ),
    "code inside an initializer's config": (
        lambda m: sequential(dense(kernel_initializer=made("keras.initializers", "Constant", value=code(m)))),
        "'__lambda__' is not allowed",
    ),
    "os.system as an activation": (
        lambda m: sequential(dense(activation=call("os", "system", f"touch {m}"))),
        "module 'os' of class 'function' is not Keras' own",
    ),
    "subprocess.Popen as a layer": (
        lambda m: sequential(made("subprocess", "Popen", args=["touch", m])),
        "module 'subprocess' of class 'Popen' is not Keras' own",
    ),
    "subprocess.Popen as a config value": (
        lambda m: sequential(dense(other=made("subprocess", "Popen", args=["touch", m]))),
        "'Popen' is not allowed here",
    ),
    "os.open through a dotted class": (
        lambda m: sequential(made(None, "os.open", path=m, flags=os.O_CREAT)),
        "class 'os.open' is not Keras' own",
    ),
    "a module of keras that imports os": (
        lambda m: sequential(dense(activation=call("keras.src.utils.file_utils", "os.system", f"touch {m}"))),
        "activation 'os.system'",
    ),
    "keras.utils.get_file": (
        lambda m: sequential(
            dense(
                activation=call(
                    "keras.utils",
                    "get_file",
                    os.path.basename(m),
                    "file:///etc/hostname",
                    cache_dir=os.path.dirname(m),
                    cache_subdir="",
                )
            )
        ),
        "activation 'get_file'",
    ),
    "TorchModuleWrapper with a pickle": (
        lambda m: sequential(
            made("keras.layers", "TorchModuleWrapper", module=base64.b64encode(pickle.dumps(Writes(m))).decode())
        ),
        "layer class 'TorchModuleWrapper' may not be loaded",
    ),
    "a numpy array of pickled objects": (
        lambda m: sequential(
            dense(
                kernel_initializer=made(
                    "keras.initializers",
                    "Constant",
                    value={
                        "class_name": "__numpy__",
                        "config": {"dtype": "O", "value": base64.b64encode(pickle.dumps(Writes(m))).decode()},
                    },
                )
            )
        ),
        "'__numpy__' is not allowed",
    ),
    "a typespec of another module": (
        lambda m: sequential(
            dense(
                other={
                    "class_name": "__typespec__",
                    "spec_name": "Popen",
                    "module": "subprocess",
                    "registered_name": None,
                    "config": [["touch", m]],
                }
            )
        ),
        "'__typespec__' is not allowed",
    ),
    "a vocabulary file for StringLookup": (
        lambda m: sequential(layer("StringLookup", name="s", vocabulary="FILE")),
        "layer class 'StringLookup' may not be loaded",
    ),
    "TFSMLayer of a user's folder": (
        lambda m: sequential(layer("TFSMLayer", name="t", filepath="FOLDER")),
        "layer class 'TFSMLayer' may not be loaded",
    ),
    "a registered name of another package": (
        lambda m: sequential(layer("Dense", units=f"touch {m}") | {"registered_name": "os>system"}),
        "registered name 'os>system' of class 'Dense' is custom",
    ),
    "nesting deeper than Python's stack": (lambda m: "[" * 200_000, "the architecture is not JSON"),
    "a number of a million digits": (
        lambda m: '{"class_name": "Sequential", "config": %s}' % ("9" * 10**6),
        "the architecture is not JSON",
    ),
    "twenty million characters": (lambda m: '"%s"' % ("x" * (20 * MB)), "characters, at most"),
    "six thousand layers": (lambda m: sequential(*[dense()] * 6000), "more than 5000 layers"),
}


# --- parameter strings: name -> (compile or fit, the string for a mark, a part of the message) ----------------------
def _compile(loss="'mse'", optimizer="'SGD()'", **more):
    return ", ".join([f"loss={loss}", f"optimizer={optimizer}", *(f"{k}={v}" for k, v in more.items())])


PARAMETERS = {
    "code as a loss": ("compile", lambda m: _compile(loss=touch(m)), "loss .* is not a name"),
    "code as the loss of an output": (
        "compile",
        lambda m: _compile(loss=f"{{'a': {touch(m)}}}"),
        "loss' must be a literal",
    ),
    "an import as a loss": (
        "compile",
        lambda m: _compile(loss=f"__import__('os').system('touch {m}')"),
        "is not a name",
    ),
    "code as an optimizer": ("compile", lambda m: _compile(optimizer=touch(m)), "unknown optimizer"),
    "code as the learning rate": (
        "compile",
        lambda m: _compile(optimizer=f"SGD(lr={touch(m)})"),
        "optimizer argument learning_rate' must be a literal",
    ),
    "a schedule of code": (
        "compile",
        lambda m: _compile(optimizer=f"Adam(learning_rate=[{touch(m)} for _ in [1]])"),
        "must be a literal|is not a sequence",
    ),
    "a subclass walk": (
        "compile",
        lambda m: _compile(
            optimizer="SGD(lr=[c for c in ().__class__.__base__."
            f"__subclasses__() if c.__name__ == 'Popen' and c(['touch', '{m}']).wait()])"
        ),
        "must be a literal|is not a sequence",
    ),
    "code as a metric": ("compile", lambda m: _compile(metrics=f"[{touch(m)}]"), "metrics' must be a literal"),
    "another argument that is code": ("compile", lambda m: _compile(run_eagerly=touch(m)), "is not accepted"),
    "code as the batch size": ("fit", lambda m: f"batch_size={touch(m)}", "batch_size' must be a literal"),
    "code in an f-string": ("fit", lambda m: "epochs=f\"{open('%s', 'w')}\"" % m, "epochs' must be a literal"),
    "a lambda that is called": ("fit", lambda m: f"shuffle=(lambda: {touch(m)})()", "shuffle' must be a literal"),
    "code as class weights": ("fit", lambda m: "class_weight={0: %s}" % touch(m), "class_weight' must be a literal"),
    "a walrus": ("fit", lambda m: f"verbose=(x := {touch(m)})", "verbose' must be a literal"),
    "code as callbacks": ("fit", lambda m: f"callbacks=[{touch(m)}]", "callbacks must be one TensorBoard"),
    "code in a callback": ("fit", lambda m: f"callbacks=[dict(log_dir={touch(m)})]", "must be one TensorBoard"),
    "an argument of fit that is code": ("fit", lambda m: f"validation_data={touch(m)}", "is not accepted"),
}


# --- files: name -> (the bytes for a mark, a part of the message) -------------------------------------------
def archive(config=None, weights=None, method=zipfile.ZIP_STORED, **others):
    made_file = io.BytesIO()
    with zipfile.ZipFile(made_file, "w", method) as file:
        file.writestr("config.json", json.dumps(sequential(dense())) if config is None else config)
        file.writestr("model.weights.h5", h5(lambda f: None) if weights is None else weights)
        for name, content in others.items():
            file.writestr(name, content)
    return made_file.getvalue()


def h5(fill):
    import h5py

    memory = io.BytesIO()
    with h5py.File(memory, "w") as file:
        group = file.create_group("layers/dense/vars")
        group["1"] = [0.0, 0.0, 0.0]
        fill(group)
    return memory.getvalue()


def virtual(group):
    import h5py

    layout = h5py.VirtualLayout((4, 3), "f4")
    layout[:] = h5py.VirtualSource("/tmp/other.h5", "secret", (4, 3))
    group.create_virtual_dataset("0", layout)


def external(group):
    group.create_dataset("0", (4, 3), "f4", external=[("/etc/passwd", 0, 48)])


def link(group):
    import h5py

    group["0"] = h5py.ExternalLink("/tmp/other.h5", "/secret")


def texts(group):
    import h5py

    group.create_dataset("0", data=["x"] * 12, dtype=h5py.string_dtype())


def symlink(mark):
    made_file = io.BytesIO(archive())
    with zipfile.ZipFile(made_file, "a") as file:
        info = zipfile.ZipInfo("assets")
        info.external_attr = 0o120777 << 16
        file.writestr(info, os.path.dirname(mark))
        file.writestr("assets/" + os.path.basename(mark), "x")
    return made_file.getvalue()


FILES = {
    "a .keras file with a Lambda": (
        lambda m: archive(json.dumps(sequential(code_layer(m)))),
        "layer class 'Lambda' may not be loaded",
    ),
    "a .keras file that compiles code": (
        lambda m: archive(
            json.dumps(
                {
                    **sequential(dense(activation="linear")),
                    "compile_config": {"loss": code(m), "optimizer": "sgd"},
                    "build_config": {"input_shape": [None, 4]},
                    "module": "os",
                }
            )
        ),
        "module 'os' of class 'Sequential'",
    ),
    "a pickle called .keras": (lambda m: pickle.dumps(Writes(m)), "it is not a .keras file"),
    "pickled weights": (lambda m: archive(weights=pickle.dumps(Writes(m))), "its weights cannot be read"),
    "a pickled part of a model": (
        lambda m: archive(**{"custom.pkl": pickle.dumps(Writes(m))}),
        "it holds 'custom.pkl', which is not part of a model",
    ),
    "a path that climbs": (lambda m: archive(**{"../" * 9 + m[1:]: "x"}), "which is not part of a model"),
    "a symbolic link": (symlink, "it holds 'assets', which is not part of a model"),
    "a bomb of zeros": (
        lambda m: archive(weights=bytes(300 * MB), method=zipfile.ZIP_DEFLATED),
        "model.weights.h5 has 314572800 bytes",
    ),
    "a bomb of spaces as JSON": (
        lambda m: archive(b" " * (200 * MB), method=zipfile.ZIP_DEFLATED),
        "config.json has 209715200 bytes",
    ),
    "a bomb of another method": (
        lambda m: archive(weights=bytes(3 * MB), method=zipfile.ZIP_BZIP2),
        "compressed by method 12",
    ),
    "HDF5 that reads a file of the server": (lambda m: archive(weights=h5(external)), "'0', which is stored elsewhere"),
    "HDF5 with a link to another file": (lambda m: archive(weights=h5(link)), "hold a link, '0'"),
    "HDF5 with virtual storage": (lambda m: archive(weights=h5(virtual)), "'0', which is stored elsewhere"),
    "HDF5 of four terabytes in a few bytes": (
        lambda m: archive(weights=h5(lambda g: g.create_dataset("0", (10**6, 10**6), "f4", chunks=(1000, 1000)))),
        "at most .* are plausible",
    ),
    "HDF5 that inflates": (
        lambda m: archive(
            weights=h5(
                lambda g: g.create_dataset("0", (100 * MB,), "f4", chunks=(MB,), compression="gzip", fillvalue=1)
            )
        ),
        "at most .* are plausible",
    ),
    "HDF5 with objects": (lambda m: archive(weights=h5(texts)), "which is of Python objects or texts"),
}
