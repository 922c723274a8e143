"""load_model_selection_table and generate_model_configs."""

import pytest

from support.workload import dense, load

COMPILE = [
    "$$loss='categorical_crossentropy',optimizer='Adam(lr=0.1)',metrics=['accuracy']$$",
    "$$loss='categorical_crossentropy', optimizer='Adam(lr=0.01)',metrics=['accuracy']$$",
    "$$loss='mse',optimizer='SGD()'$$",
]
GRID = """$${'loss': ['categorical_crossentropy'], 'metrics': ['accuracy'],
    'optimizer_params_list': [{'optimizer': ['Adam', 'SGD'], 'lr': [0.001, 0.01, 0.1]}]}$$"""
FIT = "$${'batch_size': [50, 100], 'epochs': [1]}$$"
RANDOM = "$${'loss': ['mse'], 'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.001, 0.1, 'log']}]}$$"


@pytest.fixture(autouse=True)
def arch(db):
    db.run("DROP TABLE IF EXISTS mst, mst_summary, arch_other; DROP TABLE IF EXISTS arch")
    load(db, "arch", dense(), dense(16))
    yield


def rows(db):
    return db.run("SELECT * FROM mst ORDER BY mst_key")


def load_table(
    db, compiles=COMPILE, fits=("$$batch_size=5,epochs=1$$", "$$batch_size=50, epochs=1$$"), ids="1", rest=""
):
    return (
        f"SELECT madlib.load_model_selection_table('arch', 'mst', ARRAY[{ids}], ARRAY[{','.join(compiles)}], "
        f"ARRAY[{','.join(fits)}]{rest})"
    )


def generate(grid=GRID, fit=FIT, ids="1, 2", rest="", arch="arch"):
    return f"SELECT madlib.generate_model_configs('{arch}', 'mst', ARRAY[{ids}], {grid}, {fit}{rest})"


def test_load_makes_every_combination(db):
    db.run(load_table(db))
    found = rows(db)
    assert [r["mst_key"] for r in found] == [1, 2, 3, 4, 5, 6]
    assert found[1]["fit_params"] == "batch_size=50, epochs=1", "strings keep their spelling"
    assert db.run("SELECT * FROM mst_summary") == [
        {"model_arch_table": "arch", "object_table": None, "model_arch_schema": "public"}
    ]


def test_load_takes_strings_that_say_the_same_as_one(db):
    same = ["$$loss='mse',optimizer='SGD()'$$", "$$ optimizer='SGD()' ,  loss='mse' $$"]
    db.run(load_table(db, same, ["$$batch_size=5,epochs=1$$", "$$epochs=1, batch_size=5$$"], ids="2, 1, 1"))
    assert [(r["model_id"], r["compile_params"]) for r in rows(db)] == [
        (1, " optimizer='SGD()' ,  loss='mse' "),
        (2, " optimizer='SGD()' ,  loss='mse' "),
    ]


def test_grid_search_makes_the_whole_grid(db):
    db.run(generate())
    found = rows(db)
    assert len(found) == 24 and len({(r["model_id"], r["compile_params"], r["fit_params"]) for r in found}) == 24
    assert found[0]["compile_params"] == (
        "optimizer='Adam(lr=0.001)',loss='categorical_crossentropy',metrics=['accuracy']"
    )
    assert found[0]["fit_params"] == "batch_size=50,epochs=1"


def test_grid_search_takes_blocks_of_optimizer_parameters(db):
    grid = """$${'loss': ['mse'], 'optimizer_params_list': [
        {'optimizer': ['Adam', 'SGD'], 'lr': [0.1, 0.2]}, {'optimizer': ['Adam', 'rmsprop']}]}$$"""
    db.run(generate(grid, "$${'batch_size': [1, 2], 'epochs': [1, 2]}$$", rest=", 'gr'"))
    assert len(rows(db)) == 48
    assert any(r["compile_params"].startswith("optimizer='RMSprop()'") for r in rows(db))


def test_random_search_is_reproducible_and_appends(db):
    db.run(generate(RANDOM, rest=", 'rand', 8, 0"))
    first = [(r["model_id"], r["compile_params"], r["fit_params"]) for r in rows(db)]
    assert len(set(first)) == 8
    db.run("DROP TABLE mst, mst_summary")
    db.run(generate(RANDOM, rest=", 'RANDOM', 8, 0"))
    assert [(r["model_id"], r["compile_params"], r["fit_params"]) for r in rows(db)] == first
    db.run("DROP TABLE mst_summary")
    db.run(generate(RANDOM, rest=", 'random', 7, 1"))
    assert [r["mst_key"] for r in rows(db)] == list(range(1, 16))
    db.run(generate(RANDOM, rest=", 'random', 12"))
    assert len(rows(db)) == 27 and db.value("SELECT count(*) FROM mst_summary") == 1


def test_counts_are_sampled_as_whole_numbers(db):
    db.run(generate(RANDOM, "$${'batch_size': [8, 32, 'log'], 'epochs': [1]}$$", rest=", 'random', 10, 3"))
    sizes = {int(r["fit_params"].split(",")[0].split("=")[1]) for r in rows(db)}
    assert all(8 <= s <= 32 for s in sizes) and len(sizes) > 2


@pytest.mark.parametrize(
    "call,fragment",
    [
        (generate(ids="1, 9"), "model_id 9 is not in"),
        (generate(arch="nowhere"), "does not exist"),
        (generate(fit="$${'batch_size': 5}$$"), "must be a list"),
        (generate(fit="$${'batchsize': [5]}$$"), "fit_params_dict"),
        (generate(rest=", 'grid', 5"), "must be NULL in grid search"),
        (generate(RANDOM, rest=", 'random', 0"), "num_configs"),
        (generate(rest=", 'hyper'"), "search_type"),
        (generate(rest=", 'random', 1000"), "found 24"),
        (
            generate(
                "$${'loss': ['mse'], 'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.1, 0.01, 'log']}]}$$",
                rest=", 'random', 3",
            ),
            "must be above",
        ),
        (generate("$${'loss': ['mse'], 'optimizer_params_list': [{}]}$$"), "with entries"),
        (generate("$${'optimizer': ['SGD']}$$"), "'loss' is required"),
        (generate(rest=", 'grid', NULL, NULL, 'objects'"), "object table"),
    ],
)
def test_generate_refuses_bad_input_and_leaves_nothing(db, call, fragment):
    assert fragment in str(db.error(call))
    assert db.value("SELECT to_regclass('mst') IS NULL AND to_regclass('mst_summary') IS NULL")


@pytest.mark.parametrize(
    "change,fragment",
    [
        ({"ids": "9"}, "model_id 9"),
        ({"compiles": ["NULL"]}, "empty"),
        ({"compiles": ["'loss=mse'"]}, "'optimizer'"),
        ({"compiles": ["$$loss='mse',optimizer='SGD1()'$$"]}, "unknown optimizer"),
        ({"compiles": ["$$loss='nosuch',optimizer='SGD()'$$"]}, "object table missing"),
        ({"fits": ["'batch_size=x'"]}, "batch_size"),
        ({"fits": ["'validation_data=[1]'"]}, "validation_data"),
        ({"rest": ", 'objects'"}, "object table"),
    ],
)
def test_load_refuses_bad_input_and_leaves_nothing(db, change, fragment):
    assert fragment in str(db.error(load_table(db, **change)))
    assert db.value("SELECT to_regclass('mst') IS NULL AND to_regclass('mst_summary') IS NULL")


def test_existing_tables_are_refused_by_load_and_checked_by_generate(db):
    db.run(load_table(db))
    assert "already exists" in str(db.error(load_table(db)))
    load(db, "arch_other", dense())
    assert "was made for the architecture table" in str(db.error(generate(ids="1", arch="arch_other")))
    db.run(generate(ids="1"))
    assert "is in" in str(db.error(generate(ids="1")))
    assert len(rows(db)) == 6 + 12


def test_callbacks_are_for_superusers(db):
    db.run(
        "DROP ROLE IF EXISTS plain; CREATE ROLE plain LOGIN; GRANT mop_user TO plain; GRANT SELECT ON arch TO plain;"
        "GRANT CREATE, USAGE ON SCHEMA public TO plain"
    )
    client = db.another(user="plain")
    call = generate(fit="""$${'callbacks': ['[TensorBoard(log_dir="/tmp/x/")]']}$$""", ids="1")
    assert "only a superuser may use callbacks" in str(client.error(call))
    client.close()
    db.run(call)
    assert len(rows(db)) == 6
    db.run("DROP OWNED BY plain CASCADE; DROP ROLE plain")
