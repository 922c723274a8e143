"""Predictions of trained models for raw rows, in the caller's session, in worker sessions and on segments."""
