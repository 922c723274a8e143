"""Which server the process runs: PostgreSQL, or Greenplum."""

import ctypes

# a variable of Greenplum's that interrupts of queries use
ON_GREENPLUM = hasattr(ctypes.CDLL(None), "cancel_pending_hook")
