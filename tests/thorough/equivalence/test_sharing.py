"""Sharing changes no bit: each configuration ends as plain Keras along its own path, and as it does by itself."""

import base64

import numpy as np
import psycopg2
import pytest

from support.client import Calling
from support.cluster import eventually
from support.replays import job
from support.workload import (
    LOSS,
    NOISY,
    assert_invariants,
    buffers,
    dense,
    fit,
    holding,
    last_run,
    load,
    make_data,
    replayed,
    selection,
)

ITERATIONS, SEED = 3, 11
SGD = f"loss='{LOSS}', optimizer='SGD(lr={{}}, momentum=0.9)', metrics=['accuracy']"
PER_BATCH = SGD.format("MultiStep(0.1, [7, 20], 0.5, per='batch')")
DECAY = SGD.format("[0.1, 0.1, 0.2], decay=0.01")
EVEN, UNEVEN = {0: 1, 1: 1, 2: 1}, {0: 1, 1: 3, 2: 0.5}


def rates(*values):
    return [{"arguments": {"learning_rate": value}} for value in values]


def each(name, *values):
    return [{name: value} for value in values]


WEIGHTS = [
    (f", class_weight=[{EVEN}, {EVEN}, {UNEVEN}]", each("class_weight", EVEN, EVEN, UNEVEN)),
    (f", class_weight=[{EVEN}, {UNEVEN}]", each("class_weight", EVEN, UNEVEN, UNEVEN)),
    (f", class_weight={EVEN}", each("class_weight", EVEN, EVEN, EVEN)),
]
# case -> (model_id, stages that are trained, [(compile_params, fit_params, what changes in Keras by iteration)])
CASES = {
    "learning rates": (
        1,
        6,
        [
            (SGD.format(text), "batch_size=8", rates(*values))
            for text, *values in (
                ("MultiStep(0.1, [1], 0.5)", 0.1, 0.05, 0.05),
                ("MultiStep(0.1, [2], 0.5)", 0.1, 0.1, 0.05),
                ("Constant(0.1)", 0.1, 0.1, 0.1),
                ("[0.1, 0.1, 0.05]", 0.1, 0.1, 0.05),
            )
        ],
    ),
    "batch sizes and momentum": (
        1,
        7,
        [
            (SGD.format(0.1), "batch_size=MultiStep(4, [1], 2)", each("batch_size", 4, 8, 8)),
            (SGD.format(0.1), "batch_size=[4, 8, 16]", each("batch_size", 4, 8, 16)),
            (SGD.format(0.1), "batch_size=4", each("batch_size", 4, 4, 4)),
            (
                SGD.format(0.1).replace("0.9", "[0.9, 0.9, 0.5]"),
                "batch_size=4",
                [{"batch_size": 4, "arguments": {"momentum": m}} for m in (0.9, 0.9, 0.5)],
            ),
        ],
    ),
    "class weights": (1, 5, [(SGD.format(0.1), f"batch_size=8{text}", changes) for text, changes in WEIGHTS[1:]]),
    "rates of dropout": (
        2,
        5,
        [
            (SGD.format(0.1), "batch_size=8, dropout=0.3", each("dropout", 0.3, 0.3, 0.3)),
            (SGD.format(0.1), "batch_size=8, dropout=[0.3, 0.1, 0.0]", each("dropout", 0.3, 0.1, 0.0)),
        ],
    ),
    "rates that decay": (
        1,
        5,
        [
            (DECAY, "batch_size=8", rates(0.1, 0.1, 0.2)),
            (DECAY.replace("0.2]", "0.05]"), "batch_size=8", rates(0.1, 0.1, 0.05)),
            (DECAY.replace("[0.1, 0.1, 0.2]", "0.1"), "batch_size=8", rates(0.1, 0.1, 0.1)),
        ],
    ),
    # of the first two the whole text of the rate is equal, of the third it is another
    "rates per mini-batch": (
        1,
        8,
        [
            (compiled, f"batch_size=8{text}", changes)
            for compiled, (text, changes) in zip((PER_BATCH, PER_BATCH, SGD.format(0.1)), WEIGHTS)
        ],
    ),
}


@pytest.fixture(scope="module")
def data(db):
    client = db.another()
    client.run(
        f'ALTER DATABASE "{db.database}" SET pg_mop.kernel = plain; '
        f'ALTER DATABASE "{db.database}" SET pg_mop.threads = 1; SET pg_mop.kernel = plain'
    )
    client.close()
    db.run("SET pg_mop.kernel = plain; SET pg_mop.threads = 1")
    make_data(db, rows=101, segments=3, buffer_size=9, seed=SEED)
    load(db, "arch", dense(), NOISY)
    return "flowers_packed"


def weights(db, table):
    return {r["mst_key"]: bytes(r["model_weights"]) for r in db.run(f"SELECT mst_key, model_weights FROM {table}")}


def order(db, run_id):
    return db.run(
        "SELECT mst_key, iteration, position, segment FROM madlib.mop_visit_order WHERE run_id = %s ORDER BY 1, 2, 3",
        [run_id],
    )


def alone(db, run_id):
    """The weights of the same run, done again with each configuration trained by itself."""
    db.run("DROP TABLE IF EXISTS alone, alone_info, alone_summary; SET pg_mop.sharing = off")
    db.run("SELECT madlib.mop_replay(%s, 'alone')", [run_id])
    db.run("RESET pg_mop.sharing")
    again = last_run(db)
    assert db.value("SELECT merge_rate FROM madlib.mop_runs WHERE run_id = %s", [again]) == 1
    assert order(db, again) == order(db, run_id)
    assert_invariants(db, again)
    return weights(db, "alone")


def plain(db, run_id, case):
    """The weights that Keras gives, configuration by configuration."""
    model_id, _, configurations = CASES[case]
    jobs = []
    for key, (compile_params, _, changes) in enumerate(configurations, 1):
        visits, batches = [], 0
        for row in order(db, run_id):
            if row["mst_key"] == key:
                visit = {**buffers(db, "flowers_packed", row["segment"]), **changes[row["iteration"] - 1]}
                if compile_params == PER_BATCH:
                    done = batches
                    batches += -(-sum(b["shape"][0] for b in visit["x"]) // 8)
                    visit["learning_rates"] = [0.1 * 0.5 ** ((n >= 7) + (n >= 20)) for n in range(done, batches)]
                if "decay=0.01" in compile_params:
                    rate = np.float32(visit.pop("arguments")["learning_rate"])
                    done = batches
                    batches += -(-sum(b["shape"][0] for b in visit["x"]) // 8)
                    visit["learning_rates"] = [
                        float(rate / (np.float32(1) + np.float32(0.01) * np.float32(n))) for n in range(done, batches)
                    ]
                visits.append(visit)
        started = {"learning_rate": 0.1, "momentum": 0.9}
        jobs.append(job((dense(), NOISY)[model_id - 1], "SGD", started, visits, SEED, model_id))
    return {key: base64.b64decode(done["plain"]) for key, done in enumerate(replayed(jobs), 1)}


@pytest.mark.parametrize("case", CASES)
def test_each_configuration_ends_as_keras_does_along_its_path_and_as_it_does_by_itself(db, data, case):
    model_id, stages, configurations = CASES[case]
    selection(db, "mst", "arch", [(model_id, *strings[:2]) for strings in configurations])
    run_id = fit(db, data, "models", "mst", ITERATIONS, frequency=1)
    assert_invariants(db, run_id)
    assert db.value("SELECT count(*) FROM madlib.mop_stages WHERE run_id = %s", [run_id]) == stages
    assert db.value("SELECT count(*) FROM madlib.mop_unit WHERE run_id = %s AND kind = 'train'", [run_id]) == 3 * stages
    assert (
        db.value("SELECT merge_rate FROM madlib.mop_runs WHERE run_id = %s", [run_id])
        == ITERATIONS * len(configurations) / stages
    )
    shared = weights(db, "models")
    assert shared == alone(db, run_id)
    assert db.value(
        "SELECT bool_and(a.training_loss = b.training_loss AND a.training_metrics = b.training_metrics) "
        "FROM models_info a JOIN alone_info b USING (mst_key)"
    )
    assert shared == plain(db, run_id, case)


def test_shuffled_rows_are_shuffled_alike_for_who_shares_and_who_does_not(db, data):
    selection(
        db,
        "mst",
        "arch",
        [(1, strings[0], "batch_size=8, shuffle=True, epochs=2") for strings in CASES["learning rates"][2]],
    )
    run_id = fit(db, data, "models", "mst", ITERATIONS)
    assert db.value("SELECT merge_rate FROM madlib.mop_runs WHERE run_id = %s", [run_id]) == 2
    shuffled = weights(db, "models")
    assert shuffled == alone(db, run_id)
    selection(db, "mst", "arch", [(1, strings[0], "batch_size=8, epochs=2") for strings in CASES["learning rates"][2]])
    fit(db, data, "models", "mst", ITERATIONS)
    assert all(shuffled[key] != own for key, own in weights(db, "models").items())


SLOW = "batch_size=1, epochs=8"


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
def test_a_run_that_was_stopped_among_branches_goes_on_to_the_same_weights(db, data, how):
    selection(db, "slow", "arch", [(1, strings[0], SLOW) for strings in CASES["learning rates"][2]])
    client = db.another()
    client.run("SET pg_mop.lock_timeout = '300s'")
    # one of two stages of the second iteration has begun, and not all of the third have
    second = (
        "SELECT count(*) FROM madlib.mop_units u JOIN madlib.mop_runs r USING (run_id) WHERE model_output_table = %s AND "
        "u.status = 'finished' AND NOT u.shared AND iteration = 2"
    )
    with holding(db.another()) as let_some_begin:
        running = Calling(
            client, f"SELECT madlib.madlib_keras_fit_multiple_model('{data}', '{how}', 'slow', {ITERATIONS}, FALSE)"
        )
        assert eventually(lambda: db.value(second, [how]) >= 2 or let_some_begin(), 120)
        db.run(f"SELECT {how}(%s)", [client.connection.info.backend_pid])
    assert isinstance(running.end(), psycopg2.Error)
    client.close()
    run_id = last_run(db)
    before = db.run("SELECT * FROM madlib.mop_unit WHERE run_id = %s AND status = 'finished'", [run_id])
    assert 5 <= len(before) < 3 * 6
    assert eventually(lambda: db.value("SELECT status FROM madlib.mop_runs WHERE run_id = %s", [run_id]) != "running")
    db.run("SELECT madlib.mop_resume(%s)", [run_id])
    after = db.run("SELECT * FROM madlib.mop_unit WHERE run_id = %s AND status = 'finished'", [run_id])
    assert all(unit in after for unit in before) and len(after) == 3 * 6 + 3 * 3
    assert_invariants(db, run_id)
    assert weights(db, how) == alone(db, run_id)
