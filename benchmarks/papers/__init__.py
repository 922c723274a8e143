"""The papers' experiments, by pg_mop's schedulers in the simulator: make papers."""
