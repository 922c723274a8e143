"""The functions that act on runs, jobs, trainers and servers, and that report."""
