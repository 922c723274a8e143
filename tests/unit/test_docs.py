"""The documents name tests and functions that exist."""

import re

import pytest

from support.cluster import ROOT


def test_the_tests_that_the_compatibility_table_names_exist():
    text = (ROOT / "docs" / "compatibility.md").read_text()
    rows = [line.split("|")[4].strip() for line in text.splitlines() if re.match(r"\| [TXD] \|", line)]
    assert len(rows) > 60
    for row in rows:
        module = None
        for part in row.split(", "):
            found = re.fullmatch(r"(?:((?:\w+/)+\w+)(?:::)?)?(\w+)?( \(.*\))?|-", part)
            assert found, part
            if found[1]:
                folder, _, name = found[1].rpartition("/")
                module = (ROOT / "tests" / folder / f"test_{name}.py").read_text()
            if found[2]:
                assert re.search(rf"^def test_{found[2]}\(", module, re.M), part


def _anchors(text):
    """What a document's headings, and its other places with names, are called in links."""
    plain = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.*)$", plain, re.M)
    } | set(re.findall(r'<a id="([\w-]+)"></a>', plain))


def test_links_lead_somewhere():
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
        for to in re.findall(r"\]\(([^)\s]+)\)", text):
            if to.startswith("http"):
                continue
            name, _, anchor = to.partition("#")
            target = path.parent / name if name else path
            assert target.exists(), (path.name, to)
            assert not anchor or anchor in _anchors(target.read_text()), (path.name, to)


def test_pictures_come_in_light_and_dark_and_none_is_left_over():
    used = set()
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = path.read_text()
        for whole in re.findall(r"<picture>.*?</picture>", text, re.S):
            (dark,), (light,) = re.findall(r'srcset="([^"]+)"', whole), re.findall(r' src="([^"]+)"', whole)
            assert dark == light.replace("-light.png", "-dark.png") != light, (path.name, light)
            assert re.search(r' alt="[^"]{6,}"', whole) and re.search(r' width="\d+"', whole), (path.name, light)
            used |= {(path.parent / dark).resolve(), (path.parent / light).resolve()}
        used |= {(path.parent / name).resolve() for name in re.findall(r"!\[[^\]]{6,}\]\(([^)]+)\)", text)}
    assert used == set((ROOT / "docs" / "pictures").iterdir())


@pytest.fixture
def reference(monkeypatch):
    """The tool that writes docs/reference.md and docs/reference/."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import reference

    return reference


def test_the_reference_is_the_one_that_the_tool_writes(reference):
    docs = ROOT / "docs"
    there = [docs / "reference.md", *(docs / "reference").glob("*.md")]
    assert {path.relative_to(docs).as_posix(): path.read_text() for path in there} == reference.pages(), (
        "make reference"
    )


def test_the_reference_has_every_function_view_and_setting(reference):
    from pg_mop.api.common import help as helps

    page = "\n".join(reference.pages().values())
    for name in [*helps.FUNCTIONS, *helps.OF_RUNS]:
        assert re.search(rf"^## {name}$", page, re.M) and re.search(
            rf"^(SELECT|CALL|SELECT \* FROM) madlib\.{name}\(", page, re.M
        ), name
    assert sorted(name for names in reference.GROUPS.values() for name in names) == sorted(
        [*helps.FUNCTIONS, *helps.OF_RUNS]
    )
    sql = "".join(path.read_text() for folder in ("sql", "sql/postgresql") for path in (ROOT / folder).glob("*.sql"))
    granted = {
        name
        for names in re.findall(r"^GRANT SELECT ON ([^;]*) TO mop_user;", sql, re.M)
        for name in re.findall(r"@extschema@\.(\w+)", names)
    }
    views = granted & set(re.findall(r"^CREATE VIEW @extschema@\.(\w+)", sql, re.M))
    internal = {"mop_tickets", "mop_tokens", "mop_seen_run", "mop_arrivals", "mop_departures"}
    assert views - internal == set(reference.VIEWS)
    named = set(re.findall(r"^\| `pg_mop\.(\w+)`", page, re.M))
    assert named == set(helps.settings.KNOWN) and {reference.RENAMED.get(name, name) for name in named} == set(
        reference.SETTINGS
    )


def test_the_tests_that_the_reliability_document_names_exist():
    text = (ROOT / "docs" / "reliability.md").read_text()
    there = "".join(path.read_text() for path in (ROOT / "tests").glob("**/faults/test_*.py"))
    rows = [line.split("|")[-2].strip() for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10 and all(re.fullmatch(r"`\w+`", row) for row in rows)
    for name in re.findall(r"`(\w{25,})`", text) + [row.strip("`") for row in rows]:
        if name not in ("client_connection_check_interval", "madlib_keras_fit_multiple_model"):  # they are no tests
            assert f"def test_{name.removeprefix('test_')}(" in there, name


def test_the_search_document_names_every_procedure_with_its_parameters_and_defaults():
    from pg_mop.search import OF_MODELS, PROCEDURES

    rows = re.findall(r"^\| `([\w-]+)` \| [^|]+ \| ([^|]+) \|$", (ROOT / "docs" / "search.md").read_text(), re.M)
    assert {name for name, _ in rows} == {*PROCEDURES, *OF_MODELS}
    for name, text in rows:
        named = {found[0]: found[1] for found in re.findall(r"`(\w+)(?:=([^`]+))?`", text)}
        known = {**PROCEDURES, **OF_MODELS}[name].PARAMETERS
        assert named.keys() == known.keys(), name
        for parameter, default in named.items():
            wanted = known[parameter].default
            said = f"{wanted:.3g}" if isinstance(wanted, float) else "" if wanted is None else str(wanted)
            assert default == said, (name, parameter)


def test_what_was_never_run_on_a_gpu_is_said_to_be_so():
    """Until somebody has tried it: each paragraph that offers something for GPUs says that it was not tried."""
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for paragraph in re.split(r"\n\s*\n", path.read_text()):
            if re.search(r"FRAMEWORK=cuda|compose\.gpu\.yaml|jax\[cuda|a Ray actor", paragraph):
                assert re.search(r"not (been )?tried", paragraph), (path.name, paragraph)
