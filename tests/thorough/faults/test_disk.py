"""The disk space that the states of a run take."""

import time

from support.client import Calling
from support.workload import last_run, layer, load, make_data, selection, sequential


def test_states_take_less_than_three_times_the_live_ones_over_a_thousand_hops(db):
    """Five models of 2.2 MB; the disk is measured again and again, within the open call."""
    load(
        db,
        "broad_arch",
        sequential(
            "broad",
            [4],
            layer("Dense", name="a", units=740, activation="relu"),
            layer("Dense", name="b", units=740, activation="relu"),
            layer("Dense", name="c", units=3, activation="softmax"),
        ),
    )
    make_data(db, "few", rows=20, segments=2)
    selection(
        db,
        "broad_mst",
        "broad_arch",
        [
            (1, f"loss='categorical_crossentropy', optimizer='SGD(learning_rate={r})'", "batch_size=10")
            for r in (0.001, 0.002, 0.003, 0.004, 0.005)
        ],
    )
    catalog = (
        "SELECT sum(pg_total_relation_size(t))::bigint FROM unnest(ARRAY['mop_run', 'mop_configuration', "
        "'mop_stage', 'mop_request', 'mop_stage_state', 'mop_unit', 'mop_state_table']) AS n, "
        "to_regclass('madlib.' || n) AS t"
    )
    before = db.value(catalog)
    client = db.another()
    client.run("SET pg_mop.kernel = 'auto'; SET pg_mop.chain_seconds = 0")  # every hop writes a state
    running = Calling(
        client,
        "SELECT madlib.madlib_keras_fit_multiple_model('few_packed', 'broad', 'broad_mst', 100, FALSE, NULL, 100)",
    )
    most, live, measured = 0, 0, 0
    while running.thread.is_alive():
        row = db.run("SELECT state_bytes, run_id FROM madlib.mop_runs WHERE model_output_table = 'broad'")
        if row:
            # (a look locks tables, which are then dropped after the next unit: the second look counts)
            time.sleep(0.1)
            most = max(
                most,
                min(
                    row[0]["state_bytes"],
                    db.value("SELECT state_bytes FROM madlib.mop_runs WHERE run_id = %s", [row[0]["run_id"]]),
                ),
            )
            live = db.value(
                "SELECT coalesce(sum(bytes), 0)::bigint FROM madlib.mop_stage_state WHERE run_id = %s "
                "AND state_table IS NOT NULL",
                [row[0]["run_id"]],
            )
            measured += 1
        time.sleep(0.2)
    assert running.end() is None and measured > 5 and live > 10e6
    assert (
        db.value("SELECT count(*) FROM madlib.mop_units WHERE run_id = %s AND kind = 'train'", [last_run(db)]) == 1000
    )
    assert most < 3 * live, f"{most / 1e6:.1f} MB for {live / 1e6:.1f} MB of live states"
    grown = db.value(catalog) - before
    print(f"most {most / 1e6:.1f} MB for {live / 1e6:.1f} MB of live states; the catalog grew by {grown / 1e6:.2f} MB")
    # the log keeps its rows; VACUUM cannot remove dead rows of a unit before the call ends
    assert grown < 3000 * 1000, f"the catalog grew by {grown} bytes in 1,000 units"
    client.close()
