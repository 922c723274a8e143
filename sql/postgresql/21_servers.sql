-- Packed tables with segments on several servers, and connections between the servers.

-- Users drop a packed table with all its segments and copies on other servers with this.
CREATE FUNCTION @extschema@.mop_drop_packed(packed_table varchar) RETURNS void
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.runs.servers.mop_drop_packed(plpy, *args) $$;

-- Users let a server join a running run with this. Its coordinator copies segments there, and trains on them.
CREATE FUNCTION @extschema@.mop_add_server(run_id double precision, server text) RETURNS void
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.runs.servers.mop_add_server(plpy, *args) $$;

-- Superusers connect servers with each other, so that model states move directly; `missing` lists the remaining
-- commands for each server.
CREATE FUNCTION @extschema@.mop_connect_servers(servers text)
RETURNS TABLE (on_server text, server text, role text, missing text)
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.runs.servers.mop_connect_servers(plpy, *args) $$;
