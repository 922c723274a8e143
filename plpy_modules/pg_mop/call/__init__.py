"""What is fixed before a run begins: the call as a value, its segments, servers, configurations and estimates."""
