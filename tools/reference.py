"""A hook of MkDocs: the page reference.md, every SQL function by its own help."""

import pathlib
import re
import sys

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "plpy_modules"), str(ROOT)]


def page():
    """The page's text: what each function is for, its arguments from the SQL that makes it, and its example."""
    from pg_mop.api import help as helps

    forms = signatures(
        "".join(
            path.read_text()
            for path in sorted([*(ROOT / "sql").glob("*.sql"), *(ROOT / "sql" / "postgresql").glob("*.sql")])
        )
    )
    said = {**{name: about for name, (about, _, _) in helps.FUNCTIONS.items()}, **helps.OF_RUNS}
    lines = [
        "# Reference",
        "",
        "Every function says the same of itself: `SELECT madlib.mop_search('usage')`, "
        "`('example')`. The extension's schema is `madlib` here.",
        "",
    ]
    for name in sorted(said):
        lines += [f"## {name}", "", said[name], "", "```text"]
        lines += [_call(verb, name, arguments) for verb, arguments in forms[name]] + ["```", ""]
        own = sorted(
            {argument.split()[0] for _, arguments in forms[name] for argument in arguments} & helps.ARGUMENTS.keys()
        )
        lines += [f"- `{argument}`: {helps.ARGUMENTS[argument]}" for argument in own] + [""] * bool(own)
        if name in helps.FUNCTIONS:
            lines += ["```sql", helps.FUNCTIONS[name][1].strip().format(schema="madlib"), "```", ""]
    return "\n".join(lines)


def signatures(sql):
    """{name: [(verb, [argument, ...]), ...]} of the functions and procedures that some SQL makes."""
    found = {}
    for kind, name, arguments, result in re.findall(
        r"^CREATE (FUNCTION|PROCEDURE) @extschema@\.(\w+)\(((?:[^()]|\([^()]*\))*)\)\s*(?:RETURNS ([^\n]*))?", sql, re.M
    ):
        verb = "CALL" if kind == "PROCEDURE" else "SELECT * FROM" if result.startswith("SETOF") else "SELECT"
        wanted = [
            part
            for part in re.split(r",\s*(?![^()]*\))", " ".join(arguments.split()))
            if part and not part.startswith(("OUT ", "token "))
        ]
        found.setdefault(name, []).append((verb, wanted))
    return found


def _call(verb, name, arguments):
    """A call on one line or, where that is too long, a line for each argument. Arguments that must be integers are
    shown as such."""
    from pg_mop.backend.database import ALL_INTEGERS

    arguments = [
        argument.replace("double precision", "integer") if argument.split()[0] in ALL_INTEGERS else argument
        for argument in arguments
    ]
    line = f"{verb} madlib.{name}({', '.join(arguments)})"
    return line if len(line) <= 90 else f"{verb} madlib.{name}(\n    " + ",\n    ".join(arguments) + ")"


def on_files(files, config):
    """MkDocs' event: the page is one of the site's files."""
    files.append(File.generated(config, "reference.md", content=page()))
    return files
