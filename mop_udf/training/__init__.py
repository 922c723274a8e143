"""Models in a trainer: built, trained, evaluated, and exported."""
