-- Rights on the catalog's tables and on views that Greenplum lacks or creates differently.

GRANT SELECT ON @extschema@.mop_departures, @extschema@.mop_jobs, @extschema@.mop_watch, @extschema@.mop_queue,
    @extschema@.mop_monitoring, @extschema@.mop_audit, @extschema@.mop_my_sharing TO mop_user;
GRANT INSERT ON @extschema@.mop_arrivals TO mop_user;
-- row security shows a role its own rows; only the extension's owner writes
GRANT SELECT ON @extschema@.mop_run, @extschema@.mop_configuration, @extschema@.mop_segment, @extschema@.mop_unit,
    @extschema@.mop_stage_state, @extschema@.mop_state_table, @extschema@.mop_metric, @extschema@.mop_owner,
    @extschema@.mop_stage, @extschema@.mop_request, @extschema@.mop_search_log, @extschema@.mop_checkpoint,
    @extschema@.mop_control_request, @extschema@.mop_hop, @extschema@.mop_remote_run, @extschema@.mop_copy,
    @extschema@.mop_taken_unit TO mop_user;
-- who watches a server is no user of it
GRANT USAGE ON SCHEMA @extschema@ TO pg_monitor;
GRANT USAGE ON SCHEMA @extschema@ TO pg_read_all_settings;
GRANT SELECT ON @extschema@.mop_monitoring, @extschema@.mop_audit TO pg_monitor;
GRANT SELECT ON @extschema@.mop_audit TO pg_read_all_settings;
GRANT EXECUTE ON FUNCTION @extschema@.mop_pool(), @extschema@.mop_trains(text),
    @extschema@.mop_status(text, integer, timestamptz, text) TO pg_monitor;
