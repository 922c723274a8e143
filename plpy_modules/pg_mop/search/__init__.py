"""Procedures that propose configurations. Pure Python."""
