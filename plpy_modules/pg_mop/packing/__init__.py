"""From source rows to packed, partitioned buffers: what the preprocessors do."""
