"""The arguments of layer classes, by which a misspelled one is found before any training. Pure Python, without Keras."""

from __future__ import annotations

# classes -> their arguments in Keras 3 (keras.layers), without those that every layer has
_WRITTEN: tuple[tuple[str, str], ...] = (
    ("Activation", "activation"),
    ("ActivityRegularization", "l1 l2"),
    ("Add Average Identity Maximum Minimum Multiply Subtract", ""),
    ("AlphaDropout Dropout", "rate noise_shape seed"),
    (
        "AveragePooling1D AveragePooling2D AveragePooling3D MaxPooling1D MaxPooling2D MaxPooling3D",
        "pool_size strides padding data_format",
    ),
    (
        "BatchNormalization",
        "axis momentum epsilon center scale beta_initializer gamma_initializer moving_mean_initializer "
        "moving_variance_initializer beta_regularizer gamma_regularizer beta_constraint gamma_constraint renorm "
        "renorm_clipping renorm_momentum synchronized",
    ),
    ("Concatenate Softmax UnitNormalization", "axis"),
    (
        "Conv1D Conv2D Conv3D",
        "filters kernel_size strides padding data_format dilation_rate groups activation use_bias "
        "kernel_initializer bias_initializer kernel_regularizer bias_regularizer activity_regularizer "
        "kernel_constraint bias_constraint",
    ),
    (
        "Conv1DTranspose Conv2DTranspose",
        "filters kernel_size strides padding output_padding data_format dilation_rate activation use_bias "
        "kernel_initializer bias_initializer kernel_regularizer bias_regularizer activity_regularizer "
        "kernel_constraint bias_constraint",
    ),
    (
        "Conv3DTranspose",
        "filters kernel_size strides padding data_format output_padding dilation_rate activation use_bias "
        "kernel_initializer bias_initializer kernel_regularizer bias_regularizer activity_regularizer "
        "kernel_constraint bias_constraint",
    ),
    ("Cropping1D", "cropping"),
    ("Cropping2D Cropping3D", "cropping data_format"),
    (
        "Dense",
        "units activation use_bias kernel_initializer bias_initializer kernel_regularizer bias_regularizer "
        "activity_regularizer kernel_constraint bias_constraint lora_rank lora_alpha quantization_config",
    ),
    (
        "DepthwiseConv1D DepthwiseConv2D",
        "kernel_size strides padding depth_multiplier data_format dilation_rate activation use_bias "
        "depthwise_initializer bias_initializer depthwise_regularizer bias_regularizer activity_regularizer "
        "depthwise_constraint bias_constraint",
    ),
    ("ELU", "alpha"),
    (
        "Embedding",
        "input_dim output_dim embeddings_initializer embeddings_regularizer embeddings_constraint mask_zero weights "
        "lora_rank lora_alpha quantization_config",
    ),
    ("Flatten", "data_format"),
    (
        "GRU",
        "units activation recurrent_activation use_bias kernel_initializer recurrent_initializer bias_initializer "
        "kernel_regularizer recurrent_regularizer bias_regularizer activity_regularizer kernel_constraint "
        "recurrent_constraint bias_constraint dropout recurrent_dropout seed return_sequences return_state "
        "go_backwards stateful unroll reset_after use_cudnn",
    ),
    ("GaussianDropout SpatialDropout1D", "rate seed"),
    ("GaussianNoise", "stddev seed"),
    (
        "GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D "
        "GlobalMaxPooling3D",
        "data_format keepdims",
    ),
    (
        "GroupNormalization",
        "groups axis epsilon center scale beta_initializer gamma_initializer beta_regularizer gamma_regularizer "
        "beta_constraint gamma_constraint",
    ),
    (
        "LSTM",
        "units activation recurrent_activation use_bias kernel_initializer recurrent_initializer bias_initializer "
        "unit_forget_bias kernel_regularizer recurrent_regularizer bias_regularizer activity_regularizer "
        "kernel_constraint recurrent_constraint bias_constraint dropout recurrent_dropout seed return_sequences "
        "return_state go_backwards stateful unroll use_cudnn",
    ),
    (
        "LayerNormalization",
        "axis epsilon center scale beta_initializer gamma_initializer beta_regularizer gamma_regularizer "
        "beta_constraint gamma_constraint",
    ),
    ("LeakyReLU", "negative_slope"),
    ("Masking", "mask_value"),
    (
        "MultiHeadAttention",
        "num_heads key_dim value_dim dropout use_bias output_shape attention_axes sliding_window flash_attention "
        "kernel_initializer bias_initializer kernel_regularizer bias_regularizer activity_regularizer "
        "kernel_constraint bias_constraint use_gate seed",
    ),
    ("Normalization", "axis mean variance invert"),
    ("PReLU", "alpha_initializer alpha_regularizer alpha_constraint shared_axes"),
    ("Permute", "dims"),
    ("RMSNormalization", "axis epsilon"),
    ("ReLU", "max_value negative_slope threshold"),
    ("RepeatVector", "n"),
    ("Rescaling", "scale offset"),
    ("Reshape", "target_shape"),
    (
        "SeparableConv1D SeparableConv2D",
        "filters kernel_size strides padding data_format dilation_rate depth_multiplier activation use_bias "
        "depthwise_initializer pointwise_initializer bias_initializer depthwise_regularizer pointwise_regularizer "
        "bias_regularizer activity_regularizer depthwise_constraint pointwise_constraint bias_constraint",
    ),
    (
        "SimpleRNN",
        "units activation use_bias kernel_initializer recurrent_initializer bias_initializer kernel_regularizer "
        "recurrent_regularizer bias_regularizer activity_regularizer kernel_constraint recurrent_constraint "
        "bias_constraint dropout recurrent_dropout return_sequences return_state go_backwards stateful unroll seed",
    ),
    ("SpatialDropout2D SpatialDropout3D", "rate data_format seed"),
    ("UpSampling1D", "size"),
    ("UpSampling2D", "size data_format interpolation"),
    ("UpSampling3D", "size data_format"),
    ("ZeroPadding1D ZeroPadding2D ZeroPadding3D", "padding data_format"),
)
# of every layer; and what Keras 2 has besides
EVERYWHERE = frozenset(
    ("name", "dtype", "trainable", "autocast", "activity_regularizer", "dtype_policy", "input_shape")
)
_OLDER = {
    "BatchNormalization": "fused virtual_batch_size adjustment",
    "DepthwiseConv1D": "groups filters",
    "DepthwiseConv2D": "groups filters",
    "Embedding": "input_length",
    "GRU": "implementation time_major",
    "LSTM": "implementation time_major",
    "LayerNormalization": "rms_scaling",
    "LeakyReLU": "alpha",
    "Conv1DTranspose": "groups",
    "Conv2DTranspose": "groups",
    "Conv3DTranspose": "groups",
    "SeparableConv1D": "groups",
    "SeparableConv2D": "groups",
}
ARGUMENTS: dict[str, frozenset[str]] = {
    kind: frozenset((*names.split(), *_OLDER.get(kind, "").split())) | EVERYWHERE
    for kinds, names in _WRITTEN
    for kind in kinds.split()
}


def knows(class_name: str, argument: str) -> bool:
    """False where a class is known and has no such argument."""
    return class_name not in ARGUMENTS or argument in ARGUMENTS[class_name]
