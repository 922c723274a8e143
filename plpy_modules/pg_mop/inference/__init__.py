"""Applying trained models to rows: what the callers' sessions and worker sessions share."""
