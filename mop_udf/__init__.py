"""What runs on the segments: the aggregate in the backend, and the trainer process that it feeds."""

home = None  # the virtual environment of the packages, in a backend: every SQL function sees to it (tools/build_sql.py)
