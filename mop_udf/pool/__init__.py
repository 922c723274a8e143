"""Trainer processes: their start, their pool, their leases, and the channel to them. Standard library only."""
