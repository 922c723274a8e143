"""Packing: rows of the source become packed, partitioned buffers, by a transform."""
