"""The caller's backend as ordinary Python: database, settings, limits, errors."""
