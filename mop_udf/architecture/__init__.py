"""Architecture JSON: the allow-list, the checks, the shapes."""
