-- Replica identities of tables without a primary key: without them a publication FOR ALL TABLES forbids UPDATE and
-- DELETE.
ALTER TABLE @extschema@.mop_secret REPLICA IDENTITY FULL;
ALTER TABLE @extschema@.mop_limit REPLICA IDENTITY FULL;
ALTER TABLE @extschema@.mop_copy REPLICA IDENTITY FULL;
ALTER TABLE @extschema@.mop_past_count REPLICA IDENTITY FULL;
ALTER TABLE @extschema@.mop_audit_log REPLICA IDENTITY FULL;
