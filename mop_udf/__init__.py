"""What runs on the segments: the aggregate in the backend, and the trainer process that it feeds."""
