"""Column types: what a column is to packing, training, predicting and exporting."""
