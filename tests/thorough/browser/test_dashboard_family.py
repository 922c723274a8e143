"""The family tree on the live page and in the report: drawn, named, followed by keyboard, on a screen and on a phone."""

import json
import pathlib

import psycopg2
import pytest
import sqlalchemy

from pg_mop_client import details
from support.browser import DESKTOP, FAINT, PHONE, SMALL, focus, opened, press, problems, readout, shown, value
from support.served import ATTACK
from support.workload import dense, last_run, load, make_data

SPACE = (
    "{'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']], 'optimizer_params_list': [{'optimizer': ['Adam'], "
    "'lr': [0.001, 0.1, 'log']}], 'batch_size': [8]}"
)
DOTS = "document.querySelectorAll('#family-picture circle.node').length"


@pytest.fixture(scope="module")
def made(db):
    """The number of a search of 8 trials whose children inherit their parents' weights."""
    make_data(db, rows=60, segments=2)
    load(db, "arch", dense())
    db.run(
        "SELECT madlib.mop_search('flowers_packed', 'found', 'arch', %s, 'regularized-evolution', "
        "'population=3, tournament=2, trials=8, iterations=1, parallel=1, inherit=yes', metric => 'loss')",
        [SPACE],
    )
    return last_run(db)


def family(db, run):
    return json.loads(db.value("SELECT madlib.mop_report(%s, 'json')", [run]))["family"]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_the_tree_is_drawn_named_and_followed_by_keyboard(db, browser, page, made, screen, size, dark):
    screen(size, dark)
    nodes = family(db, made)
    best = min((n for n in nodes if n["value"] is not None), key=lambda n: n["value"])
    opened(browser, page, f"/run/{made}?tab=family", "#family-picture svg circle")
    shown(browser, "family")
    assert value(browser, DOTS) == len(nodes) > 5
    lines = "document.querySelectorAll('#family-picture div > svg[role=img] path.curve').length"
    assert value(browser, lines) == sum(n["parent"] is not None for n in nodes) > 0
    label = value(browser, "document.querySelector('#family-picture svg[role=img]').getAttribute('aria-label')")
    assert (
        label.startswith(f"Family tree of {len(nodes)} trials in ")
        and f"the best, {best['mst_key']} with training loss" in label
    )
    focus(browser, "family")
    press(browser, "HOME")
    assert readout(browser, "family").startswith(f"trial {best['mst_key']} (rank 1)")
    child = next(n for n in nodes if n["parent"] is not None)
    for key in (child["mst_key"], nodes[child["parent"]]["mst_key"]):  # each trial is reached: to the root, and back
        press(browser, "ARROW_LEFT")
        assert "trial " in readout(browser, "family"), key
    press(browser, "ARROW_RIGHT")
    press(browser, "ENTER")
    assert value(browser, "document.querySelectorAll('#family-picture circle.marked').length") == 1
    assert value(browser, "document.querySelectorAll('#board tr[aria-selected=true]').length") == 1
    press(browser, "ENTER")
    assert browser.execute_script(SMALL) == [] and browser.execute_script(FAINT) == []
    assert value(browser, "document.documentElement.scrollWidth") <= size[0]
    assert problems(browser) == []


def test_the_report_has_the_tree_and_names_are_text(db, browser, made, screen, tmp_path):
    screen(DESKTOP)
    db.run("BEGIN")
    db.run(
        "UPDATE madlib.mop_configuration SET member = (member::jsonb || jsonb_build_object('changed', %s::text))::json "
        "WHERE run_id = %s AND member IS NOT NULL",
        [ATTACK, made],
    )
    report = db.value("SELECT madlib.mop_report(%s)", [made])
    db.run("ROLLBACK")
    path = pathlib.Path(tmp_path, "report.html")
    path.write_text(report)
    browser.get(path.as_uri())
    shown(browser, "family")
    assert value(browser, DOTS) == len(family(db, made))
    focus(browser, "family")
    press(browser, "HOME")
    press(browser, "ARROW_LEFT")
    assert not value(browser, "'attacked' in window") and problems(browser) == []


def test_the_drawer_tells_the_lineage_of_a_trial_that_a_shortened_family_leaves_out(db, page, made):
    nodes = family(db, made)
    child = next(n for n in nodes if n["parent"] is not None)
    parent = nodes[child["parent"]]["mst_key"]
    engine = sqlalchemy.create_engine("postgresql+psycopg2://", creator=lambda: psycopg2.connect(db.uri()))
    whole = json.loads(db.value("SELECT madlib.mop_report(%s, 'json')", [made]))
    with engine.connect() as connection:

        def told(**changed):
            return details.configuration(connection, "madlib", made, child["mst_key"], {**whole, **changed})[
                "made_from"
            ]

        known = told()
        assert known["mst_key"] == parent and known["changed"]
        sampled = {"sampled": {**whole["sampled"], "family": "some of them"}}
        assert told(family=[], **sampled) == known
        alone = [{**child, "parent": None}]  # (the first of a line whose beginning is left out)
        assert told(family=alone, **sampled) == known
    engine.dispose()
