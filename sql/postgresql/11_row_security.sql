-- Row security: a role reads the rows of its own runs.

INSERT INTO @extschema@.mop_secret
SELECT pg_catalog.sha256(pg_catalog.decode(pg_catalog.replace(pg_catalog.concat(pg_catalog.gen_random_uuid(),
    pg_catalog.gen_random_uuid(), pg_catalog.gen_random_uuid()), '-', ''), 'hex'));
ALTER TABLE @extschema@.mop_secret ENABLE ROW LEVEL SECURITY;

ALTER TABLE @extschema@.mop_job ENABLE ROW LEVEL SECURITY; -- only the extension's owner reads it; users read mop_jobs

ALTER TABLE @extschema@.mop_cost ENABLE ROW LEVEL SECURITY; -- likewise; users read mop_unit_costs
ALTER TABLE @extschema@.mop_turn ENABLE ROW LEVEL SECURITY; -- likewise; users read mop_queue
ALTER TABLE @extschema@.mop_role_turn ENABLE ROW LEVEL SECURITY; -- likewise
ALTER TABLE @extschema@.mop_run_count ENABLE ROW LEVEL SECURITY; -- likewise; users read mop_monitoring
ALTER TABLE @extschema@.mop_past_count ENABLE ROW LEVEL SECURITY; -- likewise
ALTER TABLE @extschema@.mop_audit_log ENABLE ROW LEVEL SECURITY; -- likewise; users read mop_audit
ALTER TABLE @extschema@.mop_run_note ENABLE ROW LEVEL SECURITY; -- likewise; users read mop_notes
ALTER TABLE @extschema@.mop_sharing ENABLE ROW LEVEL SECURITY; -- likewise; users read mop_my_sharing
ALTER TABLE @extschema@.mop_shared_run ENABLE ROW LEVEL SECURITY; -- likewise
ALTER TABLE @extschema@.mop_taken_stage ENABLE ROW LEVEL SECURITY; -- likewise

ALTER TABLE @extschema@.mop_owner ENABLE ROW LEVEL SECURITY;
CREATE POLICY oneself ON @extschema@.mop_owner FOR SELECT
    USING (who OPERATOR(pg_catalog.=) pg_catalog.to_regrole(pg_catalog.quote_ident(current_user)));
ALTER TABLE @extschema@.mop_run ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_run FOR SELECT
    USING (owner OPERATOR(pg_catalog.=) (SELECT o.owner FROM @extschema@.mop_owner o
        WHERE o.who OPERATOR(pg_catalog.=) pg_catalog.to_regrole(pg_catalog.quote_ident(current_user))));
ALTER TABLE @extschema@.mop_configuration ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_configuration FOR SELECT
    USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_segment ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_segment FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_unit ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_unit FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_hop ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_hop FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_remote_run ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_remote_run FOR SELECT
    USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_copy ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_copy FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_state_table ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_state_table FOR SELECT
    USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_stage_state ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_stage_state FOR SELECT
    USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_stage ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_stage FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_request ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_request FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_checkpoint ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_checkpoint FOR SELECT
    USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_search_log ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_search_log FOR SELECT
    USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_control_request ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_control_request FOR SELECT
    USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_metric ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_metric FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_taken_unit ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_taken_unit FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
