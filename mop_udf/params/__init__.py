"""Parameter strings: their grammar, their meaning, and sequences of values."""
