"""The contenders: each module is run as `python -m contenders.NAME WORKLOAD DSN WORKERS OUTPUT`,
with the environment common.THREADS.

The time is that of the whole process, from the raw table in the database to OUTPUT. OUTPUT is JSON with "losses" (the
final training loss of each configuration), "updates" (number of optimizer steps) and "parts" (seconds of each phase). It
may have "notes" (texts), and figures that replace those of the whole process ("seconds", "peak_bytes", ...).

A module may have `refusal(workload)`: why the contender cannot express a workload, or None. Then it is named as not
comparable, and nothing is approximated.
"""
