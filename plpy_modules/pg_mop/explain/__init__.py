"""EXPLAIN: what a call would do and take, and what a run has taken."""
