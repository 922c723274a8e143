"""What a release says of itself is the same everywhere, and what is released is whole."""

import json
import re

import pg_mop
from support.cluster import ROOT

META = json.loads((ROOT / "META.json").read_text())
PROJECT = (ROOT / "pyproject.toml").read_text()


def read(name, pattern):
    return re.search(pattern, (ROOT / name).read_text(), re.M)[1]


def test_the_version_is_one_everywhere():
    version = read("pg_mop.control", r"^default_version = '(.*)'")
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert {version} == {
        META["version"],
        META["provides"]["pg_mop"]["version"],
        pg_mop.__version__,
        read("CHANGELOG.md", r"^## (\S+)"),
        read("client/pg_mop_client/__init__.py", r'^__version__ = "(.*)"'),
    }


def test_the_packages_take_their_version_from_the_code():
    for name, package in (("pyproject.toml", "pg_mop"), ("client/pyproject.toml", "pg_mop_client")):
        assert read(name, r"^version = (.*)") == f'{{attr = "{package}.__version__"}}'
        assert "version" in json.loads(read(name, r"^dynamic = (.*)"))


def test_meta_json_has_what_pgxn_requires():
    """https://pgxn.org/meta/spec.txt, version 1.0.0."""
    assert {"name", "version", "abstract", "maintainer", "license", "provides", "meta-spec"} <= META.keys()
    assert META["name"] == "pg_mop" and re.fullmatch(r"1\.0\.\d+", META["meta-spec"]["version"])
    assert all(isinstance(META[key], str) and META[key] for key in ("abstract", "maintainer", "license"))
    assert META["license"] == "apache_2_0"
    for provided in META["provides"].values():
        assert provided.keys() >= {"file", "version"} and (ROOT / provided["file"]).is_file()
        assert (ROOT / provided["docfile"]).is_file()
    for requires in META["prereqs"]["runtime"]["requires"].values():
        assert requires == 0 or re.fullmatch(r"\d+\.\d+\.\d+", requires)


def test_the_license_is_whole_and_named():
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "END OF TERMS AND CONDITIONS" in text and len(text) > 11_000
    assert 'license = "Apache-2.0"\nlicense-files = ["LICENSE"]' in PROJECT


def test_every_package_of_the_tree_is_installed():
    listed = re.findall(r'"([\w.]+)"', re.search(r"^packages = \[(.*?)\]", PROJECT, re.M | re.S)[1])
    there = {
        path.parent.relative_to(base).as_posix().replace("/", ".")
        for base in (ROOT / "plpy_modules", ROOT)
        for top in ("pg_mop", "mop_udf")
        for path in (base / top).rglob("*.py")
    }
    assert sorted(listed) == sorted(there)


def test_what_is_released_is_frozen():
    """The last migration alone creates functions; the install script of each released version is kept."""
    migrations = sorted((ROOT / "migrations").glob("*.sql"))
    coming = pg_mop.__version__
    for path in migrations:
        assert bool(re.search(r"^#functions$", path.read_text(), re.M)) == path.stem.endswith(f"--{coming}"), path.name
    older = {path.stem.split("--")[1] for path in migrations}
    assert {path.stem.split("--")[1] for path in (ROOT / "tests" / "upgrade" / "versions").glob("*.sql")} == older
    assert coming not in older


def test_the_makefile_leaves_to_pgxs_what_is_its_own():
    """A variable that PGXS reads (PostgreSQL's manual lists them) would have it build what there is not."""
    ours = set(re.findall(r"^(\w+) *[:?]?=", (ROOT / "Makefile").read_text(), re.M))
    assert ours >= {"EXTENSION", "DATA_built", "PG_CONFIG", "SOURCES"}
    assert not ours & set(
        "MODULES MODULE_big PROGRAM MODULEDIR DATA DATA_TSEARCH DOCS HEADERS HEADERS_built SCRIPTS SCRIPTS_built REGRESS "
        "REGRESS_OPTS ISOLATION TAP_TESTS NO_INSTALL NO_INSTALLCHECK EXTRA_CLEAN OBJS SHLIB_LINK PG_LIBS "
        "PG_CPPFLAGS".split()
    )


def test_the_image_has_what_make_install_reads():
    """.dockerignore leaves in whatever of the tree the Makefile's `install` and the demo need."""
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    needed = "LICENSE Makefile pg_mop.control pyproject.toml sql migrations tools plpy_modules mop_udf demo docker"
    assert kept >= set(needed.split())
    assert all((ROOT / name).exists() for name in kept)
