-- The event trigger, on PostgreSQL and Greenplum.

CREATE EVENT TRIGGER pg_mop_end_trainers ON ddl_command_start WHEN TAG IN ('DROP EXTENSION')
    EXECUTE PROCEDURE @extschema@.mop_end_trainers_at_drop();
