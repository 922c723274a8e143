-- Evaluations as sums that are merged; several metrics; runs belong to roles, not to their names.

\echo Use "ALTER EXTENSION pg_mop UPDATE" to load this file. \quit

DROP VIEW @extschema@.mop_abandoned_runs, @extschema@.mop_runs, @extschema@.mop_units, @extschema@.mop_kernel_choices,
    @extschema@.mop_visit_order, @extschema@.mop_progress;

-- tables

-- functions that went, or whose results changed

#functions
