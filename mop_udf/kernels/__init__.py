"""Ways to run a sub-epoch on arrays. Nothing here knows of a database."""
