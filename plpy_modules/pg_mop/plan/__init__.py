"""From trials to stages: identities, the search plan, what it costs. Pure Python, no database, no Keras."""
