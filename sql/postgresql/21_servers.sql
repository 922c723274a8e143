-- Tables and servers where segments are on several servers.

CREATE FUNCTION @extschema@.mop_drop_packed(packed_table varchar) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api import servers
servers.mop_drop_packed(plpy, *args)
$$;

-- for superusers: lets servers reach one another, so that model states go straight; `missing`: what is still to be done there
CREATE FUNCTION @extschema@.mop_connect_servers(servers text)
RETURNS TABLE (on_server text, server text, role text, missing text) LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api import servers
return servers.mop_connect_servers(plpy, *args)
$$;
