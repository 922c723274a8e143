"""The functions of MADlib's interface: architectures, custom functions, packing, training, evaluation, prediction."""
