GRANT SELECT ON @extschema@.mop_place TO PUBLIC;
GRANT SELECT ON @extschema@.mop_jobs, @extschema@.mop_watch TO mop_user;
