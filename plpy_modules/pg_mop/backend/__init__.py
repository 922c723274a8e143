"""The caller's backend as ordinary Python: database, errors, settings, limits, trainers."""
