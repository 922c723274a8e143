"""The operations of keras.ops that a functional model may have as nodes. Standard library only.

In a model's JSON, `x + i`, `x * 2` or `keras.ops.mean(x)` on its tensors are objects. This module lists the operations
that may be loaded, and checks their arguments and the arguments of calls: plain data and arrays of numbers. Operations
are excluded if they take functions, read files, make tensors from just a size, or hold random numbers outside the
model's state.
"""

from typing import Any


class OperationError(ValueError):
    """The operation, or one of its arguments, may not be loaded; the text says why."""


NAMES = {
    "keras.src.ops.numpy": """
        Abs Absolute Add All Amax Amin Any Arccos Arccosh Arcsin Arcsinh Arctan Arctan2 Arctanh Argmax Argmin Argsort
        Average BroadcastTo Cbrt Ceil Clip Concatenate Copy Cos Cosh CountNonzero Cross Cumprod Cumsum Deg2rad Diagonal
        Divide DivideNoNan Dot Einsum Equal Exp Exp2 ExpandDims Expm1 Flip Floor FloorDivide FullLike GetItem Greater
        GreaterEqual Heaviside Hstack Hypot Isclose Isfinite Isinf Isnan Less LessEqual Log Log10 Log1p Log2 Logaddexp
        LogicalAnd LogicalNot LogicalOr LogicalXor Matmul Max Maximum Mean Median Min Minimum Mod Moveaxis Multiply
        NanToNum Negative NotEqual OnesLike Pad Power Prod Rad2deg Ravel Reciprocal Repeat Reshape Roll Rot90 Round
        Sign Sin Sinc Sinh Sort Split Sqrt Square Squeeze Stack Std Subtract Sum Swapaxes Take TakeAlongAxis Tan Tanh
        Tensordot Tile Trace Transpose Tril Triu TrueDivide Trunc Var Vstack Where ZerosLike""",
    "keras.src.ops.nn": """
        AveragePool Celu DepthToSpace DotProductAttention Elu Gelu Glu HardShrink HardSigmoid HardSilu HardTanh
        LayerNorm LeakyRelu LogSigmoid LogSoftmax MaxPool Moments Normalize OneHot RMSNorm Relu Relu6 Selu Sigmoid Silu
        SoftShrink Softmax Softplus Softsign SpaceToDepth SparsePlus SparseSigmoid Sparsemax Squareplus TanhShrink
        Threshold""",
    "keras.src.ops.core": "Cast SaturateCast StopGradient Unstack",
    "keras.src.ops.math": "Erf Erfinv Logsumexp Rsqrt TopK",
    "keras.src.ops.linalg": "Norm",
    "keras.src.ops.image": "CropImages PadImages RGBToGrayscale Resize",
}
ALLOWED = {module: frozenset(names.split()) for module, names in NAMES.items()}
MOST_PIECES = 1000  # pieces of a tensor that an operation may make: each is an object
PIECES = {"Split": "indices_or_sections", "Unstack": "num"}
NUMBERS = frozenset(
    """
bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 bfloat16 float16 float32 float64
""".split()
)


def is_operation(module: str | None) -> bool:
    """True where a node of this module (text or None) is an operation, not a layer."""
    return isinstance(module, str) and "ops" in module.split(".")


def check(module: str, name: str, config: Any) -> dict[str, Any]:
    """The config of an operation that may be loaded. Raises OperationError."""
    if name not in ALLOWED.get(module, ()):
        raise OperationError(
            f"operation {str(name)[:100]!r} of {module[:100]!r} may not be loaded: only "
            f"operations of keras.ops that merely compute may"
        )
    if not isinstance(config, dict) or not all(
        isinstance(key, str) and _is_plain(value) for key, value in config.items()
    ):
        raise OperationError(f"operation {name} has an argument that is not plain data")
    pieces = config.get(PIECES.get(name))
    if isinstance(pieces, (int, float)) and pieces > MOST_PIECES:
        raise OperationError(f"operation {name} makes {pieces} pieces, at most {MOST_PIECES}")
    return dict(config)


def constant(kind: str, config: Any) -> dict[str, Any]:
    """The checked config of an array of numbers in a call's arguments. Raises OperationError."""
    config = config if isinstance(config, dict) else {}
    value, dtype = config.get("value"), config.get("dtype")
    if not (isinstance(dtype, str) and dtype in NUMBERS and _is_numbers(value)):
        raise OperationError(f"an object of class {kind!r} is not allowed here unless it is an array of numbers")
    return {"value": value, "dtype": dtype}


def _is_numbers(value: Any) -> bool:
    return all(map(_is_numbers, value)) if isinstance(value, list) else isinstance(value, (bool, int, float))


def _is_plain(value: Any) -> bool:
    return (
        all(map(_is_plain, value))
        if isinstance(value, list)
        else value is None or isinstance(value, (bool, int, float, str))
    )
