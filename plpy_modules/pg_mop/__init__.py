"""pg_mop: a query optimizer and executor for model selection, inside PostgreSQL."""

__version__ = "0.4.0"
