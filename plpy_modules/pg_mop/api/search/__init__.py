"""The functions that search: procedures, model spaces, folds, further training."""
