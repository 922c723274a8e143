"""The contenders: each module is run as `python -m contenders.NAME WORKLOAD DSN WORKERS OUTPUT`.

Its whole process is timed, from the raw table in the database to OUTPUT: JSON with "losses" (final training loss of
each configuration), "updates" (number of optimizer steps) and "parts" (seconds of what it can tell apart).
"""
