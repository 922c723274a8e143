-- Row triggers, and one of TRUNCATE, which Greenplum does not support.

CREATE TRIGGER state_table_gone AFTER DELETE ON @extschema@.mop_state_table
    FOR EACH ROW EXECUTE FUNCTION @extschema@.mop_state_table_gone();

CREATE TRIGGER arrive INSTEAD OF INSERT ON @extschema@.mop_arrivals
    FOR EACH ROW EXECUTE FUNCTION @extschema@.mop_arrive();

CREATE TRIGGER find_role BEFORE INSERT OR UPDATE ON @extschema@.mop_owner
    FOR EACH ROW EXECUTE FUNCTION @extschema@.mop_find_role();
CREATE TRIGGER find_role BEFORE INSERT OR UPDATE ON @extschema@.mop_limit
    FOR EACH ROW EXECUTE FUNCTION @extschema@.mop_find_role();

CREATE TRIGGER keep_counts AFTER DELETE ON @extschema@.mop_run_count
    FOR EACH ROW EXECUTE FUNCTION @extschema@.mop_keep_counts();
CREATE TRIGGER keep_counts AFTER DELETE ON @extschema@.mop_turn
    FOR EACH ROW EXECUTE FUNCTION @extschema@.mop_keep_counts();
CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON @extschema@.mop_limit
    FOR EACH ROW EXECUTE FUNCTION @extschema@.mop_audit_limit();
CREATE TRIGGER audit_truncate AFTER TRUNCATE ON @extschema@.mop_limit
    FOR EACH STATEMENT EXECUTE FUNCTION @extschema@.mop_audit_limit();
CREATE TRIGGER find_role BEFORE INSERT ON @extschema@.mop_audit_log
    FOR EACH ROW EXECUTE FUNCTION @extschema@.mop_find_role();
