"""What several SQL entry points need: the caller's session, output tables, the winner, help."""
