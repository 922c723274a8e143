"""Schedulers for comparison with the literature. No user should choose one; the default is faster or as fast."""
