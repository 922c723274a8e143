"""Notes and tags of runs: who writes them, who reads them, and what is refused."""

import pytest

from support.forged import own_run


@pytest.fixture(scope="module")
def roles(db):
    """Two users who own a run each; ann may also act as victor."""
    db.run(
        "DROP ROLE IF EXISTS ann, victor; CREATE ROLE victor LOGIN; CREATE ROLE ann LOGIN IN ROLE victor; "
        "GRANT mop_user TO ann, victor"
    )
    ann, victor = db.another("ann"), db.another("victor")
    ann.run_id, victor.run_id = own_run(ann, state=b"anns"), own_run(victor, state=b"victors")
    yield ann, victor
    for client in (ann, victor):
        client.close()
    db.run("DELETE FROM madlib.mop_run; DROP OWNED BY ann, victor CASCADE; DROP ROLE ann, victor")


def notes(client):
    return {
        row["run_id"]: (row["note"], row["tags"])
        for row in client.run("SELECT run_id, note, tags FROM madlib.mop_notes")
    }


def test_notes_and_tags_are_kept_changed_and_removed(roles):
    ann, _ = roles
    ann.run("SELECT madlib.mop_note(%s, 'the first try', ARRAY['deep', 'baseline', 'deep'])", [ann.run_id])
    assert notes(ann) == {ann.run_id: ("the first try", ["deep", "baseline"])}
    ann.run("SELECT madlib.mop_note(%s, tags => ARRAY['wide'])", [ann.run_id])
    assert notes(ann)[ann.run_id] == ("the first try", ["wide"])
    ann.run("SELECT madlib.mop_note(%s, '<b>better</b>')", [ann.run_id])
    assert notes(ann)[ann.run_id] == ("<b>better</b>", ["wide"])
    ann.run("SELECT madlib.mop_note(%s, '', '{}')", [ann.run_id])
    assert notes(ann) == {}


def test_who_sees_a_run_reads_its_note_and_the_owner_alone_writes_it(db, roles):
    ann, victor = roles
    victor.run("SELECT madlib.mop_note(%s, 'victors', ARRAY['his'])", [victor.run_id])
    assert notes(ann)[victor.run_id] == ("victors", ["his"])  # (she may act as him)
    ann.run("SELECT madlib.mop_note(%s, 'anns')", [ann.run_id])
    assert ann.run_id not in notes(victor)
    for client, run in ((ann, victor.run_id), (victor, ann.run_id), (ann, 999999)):
        assert f"there is no run {run} of role" in str(client.error("SELECT madlib.mop_note(%s, 'x')", [run]))
    assert "permission denied" in str(victor.error("SELECT * FROM madlib.mop_run_note"))
    assert "permission denied" in str(victor.error("INSERT INTO madlib.mop_run_note VALUES (1)"))
    victor.run("SELECT madlib.mop_drop_run(%s)", [victor.run_id])
    assert victor.run_id not in notes(db)


@pytest.mark.parametrize(
    "arguments, says",
    [
        ("NULL, NULL", "neither a note nor tags are given"),
        ("repeat('x', 4001)", "the note has 4001 characters"),
        ("'x', ARRAY(SELECT i::text FROM generate_series(1, 21) i)", "there are 21 tags"),
        ("'x', ARRAY['a,b']", 'tag "a,b" is not possible'),
        ("'x', ARRAY['']", 'tag "" is not possible'),
        ("'x', ARRAY['a', NULL]", 'tag "NULL" is not possible'),
        ("'x', ARRAY[repeat('y', 51)]", "is not possible"),
    ],
)
def test_what_is_refused_changes_nothing(roles, arguments, says):
    ann, _ = roles
    ann.run("SELECT madlib.mop_note(%s, 'kept', ARRAY['kept'])", [ann.run_id])
    assert says in str(ann.error(f"SELECT madlib.mop_note({ann.run_id}, {arguments})"))
    assert notes(ann)[ann.run_id] == ("kept", ["kept"])
    assert "run_id must be an integer" in str(ann.error("SELECT madlib.mop_note(1.5, 'x')"))
