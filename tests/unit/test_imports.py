"""The import graphs: of pg_mop's rooms, and of all modules.

They are read from the sources: imports within functions, and imports for annotations alone, count too.
"""

import ast
import pathlib

import pytest

import mop_udf
import pg_mop
import pg_mop_client

PG_MOP, MOP_UDF, CLIENT = (pathlib.Path(package.__file__).parent for package in (pg_mop, mop_udf, pg_mop_client))
ROOMS = {
    "api",
    "backend",
    "call",
    "catalog",
    "columns",
    "connections",
    "engines",
    "explain",
    "inference",
    "packing",
    "plan",
    "report",
    "run",
    "schedule",
    "search",
    "spaces",
}


def modules(folder):
    """{module name: path} of a package's sources."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name, path, known):
    """The modules of `known` that a module imports, anywhere in its source."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*up, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.add(full if full in known else base)
    return {imported for imported in found if imported in known and imported != name}


def circle(graph):
    """A path of a directed graph ({node: nodes}) that returns to its first node; None without one."""
    state, path = {}, []

    def visit(node):
        state[node] = "open"
        path.append(node)
        for other in sorted(graph.get(node, ())):
            if state.get(other) == "open":
                return [*path[path.index(other) :], other]
            if other not in state and (found := visit(other)):
                return found
        state[node] = "done"
        path.pop()
        return None

    for node in sorted(graph):
        if node not in state and (found := visit(node)):
            return found
    return None


def test_a_circle_is_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None


def test_no_circle_between_the_rooms_of_pg_mop():
    known, graph = modules(PG_MOP), {}
    for name, path in known.items():
        for imported in imports(name, path, known):
            ends = [full.split(".")[1] for full in (name, imported) if "." in full]
            if len(ends) == 2 and ends[0] != ends[1]:
                graph.setdefault(ends[0], set()).add(ends[1])
    assert graph and circle(graph) is None


def test_mop_udf_imports_nothing_of_pg_mop():
    known = {**modules(PG_MOP), **modules(MOP_UDF)}
    for name, path in modules(MOP_UDF).items():
        assert not [imported for imported in imports(name, path, known) if imported.split(".")[0] == "pg_mop"], name


@pytest.mark.parametrize("folder", [MOP_UDF, CLIENT, PG_MOP], ids=lambda folder: folder.name)
def test_no_circle_between_modules(folder):
    # (mop_train and its explanation know each other)
    known = {name: path for name, path in modules(folder).items() if not name.startswith("pg_mop.api.tables")}
    graph = {name: imports(name, path, known) for name, path in known.items()}
    assert any(graph.values()) and circle(graph) is None


def test_no_module_lies_beside_the_rooms_of_pg_mop():
    assert [path.name for path in PG_MOP.glob("*.py")] == ["__init__.py"]
    assert {path.name for path in PG_MOP.iterdir() if path.is_dir() and path.name != "__pycache__"} == ROOMS


def test_only_functions_on_greenplum_read_the_state_of_cpythons_threads():
    known = modules(PG_MOP)
    assert not [name for name, path in known.items() if "pg_mop.backend.frames" in imports(name, path, known)]
