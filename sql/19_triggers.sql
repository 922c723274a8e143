-- What PostgreSQL calls by itself.

CREATE TRIGGER generation_gone AFTER DELETE ON @extschema@.mop_generation
    FOR EACH ROW EXECUTE FUNCTION @extschema@.mop_generation_gone();

CREATE TRIGGER arrive INSTEAD OF INSERT ON @extschema@.mop_arrivals
    FOR EACH ROW EXECUTE FUNCTION @extschema@.mop_arrive();

CREATE EVENT TRIGGER pg_mop_end_idle_sessions ON ddl_command_start WHEN TAG IN ('DROP EXTENSION')
    EXECUTE FUNCTION @extschema@.mop_end_idle_sessions();

CREATE TRIGGER find_role BEFORE INSERT OR UPDATE ON @extschema@.mop_owner
    FOR EACH ROW EXECUTE FUNCTION @extschema@.mop_find_role();
CREATE TRIGGER find_role BEFORE INSERT OR UPDATE ON @extschema@.mop_limit
    FOR EACH ROW EXECUTE FUNCTION @extschema@.mop_find_role();
