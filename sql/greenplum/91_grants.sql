-- Rights on relations that PostgreSQL lacks or creates differently.

GRANT SELECT ON @extschema@.mop_host_segment TO PUBLIC;
GRANT SELECT ON @extschema@.mop_jobs, @extschema@.mop_watch, @extschema@.mop_monitoring, @extschema@.mop_audit TO mop_user;
