"""The allow-list of Keras' own classes for architectures, and the spellings of Keras 2.

Standard library only.
"""

import re

LAYERS = frozenset(
    """
Activation ActivityRegularization Add AdditiveAttention AlphaDropout Attention Average AveragePooling1D
AveragePooling2D AveragePooling3D BatchNormalization Bidirectional CategoryEncoding CenterCrop Concatenate Conv1D
Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose ConvLSTM1D ConvLSTM2D ConvLSTM3D Cropping1D Cropping2D
Cropping3D Dense DepthwiseConv1D DepthwiseConv2D Dot Dropout ELU EinsumDense Embedding Flatten GRU GRUCell
GaussianDropout GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D
GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D GroupNormalization GroupQueryAttention Identity InputLayer
LSTM LSTMCell LayerNormalization LeakyReLU Masking MaxPooling1D MaxPooling2D MaxPooling3D Maximum Minimum
MultiHeadAttention Multiply Normalization PReLU Permute RMSNormalization RNN ReLU RepeatVector Rescaling Reshape
Resizing SeparableConv1D SeparableConv2D SimpleRNN SimpleRNNCell Softmax SpatialDropout1D SpatialDropout2D
SpatialDropout3D SpectralNormalization StackedRNNCells Subtract TimeDistributed UnitNormalization UpSampling1D
UpSampling2D UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D
RandomBrightness RandomContrast RandomCrop RandomFlip RandomRotation RandomTranslation RandomZoom
CustomScaleLayer LayerScale
""".split()
)
INITIALIZERS = frozenset(
    """
Constant GlorotNormal GlorotUniform HeNormal HeUniform Identity LecunNormal LecunUniform Ones Orthogonal RandomNormal
RandomUniform TruncatedNormal VarianceScaling Zeros
""".split()
)
REGULARIZERS = frozenset(("L1", "L2", "L1L2", "OrthogonalRegularizer"))
CONSTRAINTS = frozenset(("MaxNorm", "MinMaxNorm", "NonNeg", "UnitNorm"))
ACTIVATIONS = frozenset(
    """
celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu linear log_sigmoid
log_softmax mish relu relu6 selu sigmoid silu soft_shrink softmax softplus softsign sparse_plus sparse_sigmoid sparsemax
squareplus swish tanh tanh_shrink threshold
""".split()
)
# private layers of keras.applications
OTHER_MODULES = {
    "LayerScale": "keras.src.applications.convnext",
    "CustomScaleLayer": "keras.src.applications.inception_resnet_v2",
}
# layers of super-nets, which pg_mop alone writes
SUPER_NET_MODULE = "mop_udf.training.super_net"
SUPER_NET = frozenset(("Paths", "PathChoice", "PathGate", "PathNormalization", "PathWidth"))
MODELS = {"Sequential": "keras", "Functional": "keras.src.models.functional"}
OLD_NAMES = {
    "Model": "Functional",
    "OrthogonalInitializer": "Orthogonal",
    "IdentityInitializer": "Identity",
    "CuDNNLSTM": "LSTM",
    "CuDNNGRU": "GRU",
    "BatchNormalizationV1": "BatchNormalization",
    "BatchNormalizationV2": "BatchNormalization",
    "Convolution2D": "Conv2D",
    "Convolution1D": "Conv1D",
    "GlorotUniformV2": "GlorotUniform",
    "ThresholdedReLU": "ReLU",
}
RECURRENT = ("RNN", "LSTM", "GRU", "SimpleRNN", "Bidirectional", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D")
SNAKE_INITIALIZERS = {re.sub(r"(?<!^)(?=[A-Z])", "_", n).lower(): n for n in INITIALIZERS}
SNAKE_INITIALIZERS.update({"normal": "RandomNormal", "uniform": "RandomUniform", "zero": "Zeros", "one": "Ones"})
SNAKE_OTHERS = {
    "l1": "L1",
    "l2": "L2",
    "l1_l2": "L1L2",
    "max_norm": "MaxNorm",
    "min_max_norm": "MinMaxNorm",
    "non_neg": "NonNeg",
    "unit_norm": "UnitNorm",
}
# keys of Keras 2 that Keras 3 does not know
GONE = {
    "InputLayer": ("ragged", "sparse", "input_tensor", "input_dtype", "input_shape"),
    "BatchNormalization": ("fused", "virtual_batch_size", "adjustment"),
    "LSTM": ("implementation", "time_major"),
    "GRU": ("implementation", "time_major"),
    "SimpleRNN": ("implementation", "time_major"),
    "MultiHeadAttention": ("query_shape", "key_shape", "value_shape", "softmax_robust_masking"),
}
KERNEL = ("kernel_initializer", "kernel_regularizer", "kernel_constraint")
GONE.update({f"SpatialDropout{n}D": ("noise_shape", "trainable") for n in (1, 2, 3)})
GONE.update({f"Conv{n}DTranspose": ("groups",) for n in (1, 2, 3)})
GONE.update({f"SeparableConv{n}D": ("groups", *KERNEL) for n in (1, 2)})
GONE.update({f"DepthwiseConv{n}D": ("groups", "filters", *KERNEL) for n in (1, 2)})
GONE_EVERYWHERE = ("batch_input_shape", "input_dim", "input_length", "batch_shape")
DISTRIBUTIONS = {
    "normal": "truncated_normal",
    "uniform": "uniform",
    "truncated_normal": "truncated_normal",
    "untruncated_normal": "untruncated_normal",
}
MODULES = re.compile(
    r"(keras|tf_keras|tensorflow\.keras|tensorflow\.python\.keras|builtins)?"
    r"(\.(src|engine|layers|initializers|regularizers|constraints|models|activations|dtype_policies|"
    r"[a-z_0-9]+))*"
)
