GRANT SELECT ON @extschema@.mop_watch TO mop_user;
