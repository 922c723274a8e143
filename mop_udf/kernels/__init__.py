"""Kernels: implementations of training, evaluation and prediction on arrays. They know nothing of a database."""
