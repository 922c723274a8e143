"""Every function that users call explains itself, and the help names every argument."""

import re

import pytest

from support.cluster import ROOT
from support.functions import NAMES

OF_PREDICTION = set(
    "mop_predict_row mop_predict_source mop_predict_rows mop_predict_few mop_answer mop_row mop_large_row "
    "mop_trained_columns mop_explain_row mop_place_of_version mop_hand_over mop_answer_blocks mop_answer_arrays".split()
)  # which the functions for users call


def reference():
    """The pages of the reference (tools/reference.py)."""
    return "\n".join(path.read_text() for path in sorted((ROOT / "docs" / "reference").glob("*.md")))


@pytest.mark.parametrize("name", NAMES)
def test_help_and_usage(db, name):
    assert "'usage'" in db.value(f"SELECT madlib.{name}()")
    usages = {db.value(f"SELECT madlib.{name}(%s)", [word]) for word in ("usage", "HELP", " ? ")}
    assert len(usages) == 1
    arguments = db.value(
        "SELECT max(proargnames[1:pronargs]::text) FROM pg_proc WHERE proname = %s AND pronargs > 1", [name]
    )
    for argument in arguments.strip("{}").split(","):
        assert re.search(rf'^    (\w+ or )?"?{argument}"?,? ', min(usages), re.M), argument
    if name.startswith("mop_"):  # their own first argument is no word
        assert "more than one argument" in str(db.error(f"SELECT madlib.{name}('nonsense')"))
    else:
        assert "no such option" in db.value(f"SELECT madlib.{name}('nonsense')")


def test_no_function_for_users_is_without_help(db):
    functions = {
        r["proname"]
        for r in db.run(
            "SELECT DISTINCT proname FROM pg_proc WHERE pronamespace = 'madlib'::regnamespace AND prokind = 'f'"
        )
    }
    internal = set(
        "mop_transition mop_final mop_start_trainer mop_leave_trainer mop_pool mop_end_trainers_at_drop mop_run_unit "
        "mop_may_see mop_status top_k_categorical_acc_pickled mop_open_job mop_note_job mop_cancel_job".split()
    )
    for path in (ROOT / "sql").rglob("1[1-4]_*.sql"):
        internal |= set(re.findall(r"CREATE FUNCTION @extschema@\.(\w+)", path.read_text()))
    # functions on runs have no help of their own; the reference describes them
    runs = set(
        "mop_resume mop_replay mop_set_sessions mop_set_priority mop_share_training mop_add_server mop_trim_audit "
        "mop_space_sample mop_space_show mop_family mop_space_size mop_drop_run mop_drop_states mop_drop_packed "
        "mop_connect_servers mop_report mop_configuration_report mop_note mop_explain mop_explain_run "
        "mop_functions mop_settings mop_submit mop_cancel mop_wait mop_end_trainers".split()
    )
    # so have those on ordinary tables and named models
    for path in (ROOT / "sql").glob("[26][24]_*.sql"):
        runs |= set(re.findall(r"CREATE FUNCTION @extschema@\.(\w+)", path.read_text()))
    runs -= {*OF_PREDICTION, "mop_list_models", "mop_list_family_trials", "mop_split_for", *NAMES}
    internal |= {*OF_PREDICTION, "mop_list_models", "mop_list_family_trials", "mop_split_for"}
    assert runs <= functions and all(f"\n## {name}\n" in reference() for name in runs)
    helpers = {n for n in functions if n.startswith("convert_")}
    assert functions - internal - helpers - runs == {*NAMES, "gpu_configuration"}


def test_the_settings_are_listed_as_they_are_in_force(db):
    client = db.another()
    listed = {r["name"]: r for r in client.run("SELECT * FROM madlib.mop_settings()")}
    told = dict(re.findall(r"^\| `(pg_mop\.\w+)` \|([^|]*)\|", reference(), re.M))
    assert listed.keys() == told.keys()
    for name, r in listed.items():
        # (as cluster.py sets them)
        in_force = "off" if name == "pg_mop.reuse" else r["default"]
        assert r["value"] == in_force and r["takes"]
        assert told[name].strip() == f"`{r['default']}`" if r["default"] else "`" not in told[name].split(",")[0]
    client.run("SET pg_mop.seed = 42; SET pg_mop.lock_timeout = '3s'; SET pg_mop.sharing = 'off'; RESET pg_mop.sharing")
    listed = {r["name"]: r["value"] for r in client.run("SELECT * FROM madlib.mop_settings()")}
    assert (listed["pg_mop.seed"], listed["pg_mop.lock_timeout"], listed["pg_mop.sharing"]) == ("42", "3s", "on")
    client.run("SET pg_mop.replicas = 'three'")
    assert 'invalid value for setting "pg_mop.replicas"' in str(client.error("SELECT * FROM madlib.mop_settings()"))
    client.run("RESET pg_mop.replicas; SET pg_mop.sed = 42")
    assert 'unrecognized setting "pg_mop.sed"' in str(client.error("SELECT * FROM madlib.mop_settings()"))
    client.close()


def test_a_setting_counts_under_its_former_name_too(db):
    """A role's or a script's pg_mop.nursery_idle_timeout goes on working; the present name comes first."""
    client = db.another()
    shown = "SELECT value FROM madlib.mop_settings() WHERE name = 'pg_mop.fork_server_idle_timeout'"
    assert client.value(shown) == "8h"
    client.run("SET pg_mop.nursery_idle_timeout = '2min'")
    assert client.value(shown) == "2min"
    client.run("SET pg_mop.fork_server_idle_timeout = '3min'")
    assert client.value(shown) == "3min"
    client.run("RESET pg_mop.fork_server_idle_timeout")
    assert client.value(shown) == "2min"
    client.run("SET pg_mop.nursery_idle_timeout = 'soon'")
    assert "fork_server_idle_timeout" in str(client.error("SELECT * FROM madlib.mop_settings()"))
    client.close()


def test_the_list_of_functions_has_each_with_its_usage_and_says_what_the_reference_says(db):
    listed = {r["name"]: r for r in db.run("SELECT * FROM madlib.mop_functions()")}
    for name in NAMES:
        assert db.value(f"SELECT madlib.{name}('usage')") == f"{listed[name]['about']}\n\n{listed[name]['usage']}"
    told = dict(re.findall(r"^## (mop_\w+)\n\n(.+)\n", reference(), re.M))
    for name in listed.keys() - {*NAMES, "gpu_configuration"}:
        assert listed[name]["about"] == told[name], name
        assert re.search(rf"madlib\.{name}\(", listed[name]["usage"])
    trains = "fit fit_multiple_model automl"
    assert {name for name, r in listed.items() if r["trains"]} == {
        *(f"madlib_keras_{name}" for name in trains.split()),
        *(f"mop_{name}" for name in "fit_multiple_model search more resume replay".split()),
    }
