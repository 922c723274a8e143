-- What identifies a row where there is no primary key: a publication FOR ALL TABLES refuses UPDATE and DELETE else.
ALTER TABLE @extschema@.mop_secret REPLICA IDENTITY FULL;
ALTER TABLE @extschema@.mop_limit REPLICA IDENTITY FULL;
ALTER TABLE @extschema@.mop_copy REPLICA IDENTITY FULL;
