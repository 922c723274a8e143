"""From trials to stages: stage identities, the search plan, reuse, cost estimates. Pure Python: no database, no Keras."""
