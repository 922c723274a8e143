"""The functions for ordinary tables and named models."""
