"""The report of a named model as one HTML file: this module writes facts and tables, model.js draws the pictures."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from pg_mop.report.page import document, drawn, in_script, pairs, section, table


def model_page(data: Mapping[str, Any]) -> str:
    """The HTML document of a report's data (api/tables/model_report.py)."""
    about, *sections_after = data["stored"]
    sections = [about, *data["measured"], *sections_after]
    pictures = {one["name"]: one["picture"] for one in sections if one.get("picture")}
    return document(
        f"Model {data['model']}, version {data['version']}",
        (about["name"], "To the version"),
        f"<p>{escape(data['headline'])}</p>",
        "\n".join(map(_section, sections)),
        f"Made {data['made_at']} by pg_mop {data['pg_mop']}.",
        f'<script type="application/json" id="model-data">{in_script(pictures)}</script>',
        ("page.js", "tables.js", "model.js"),
    )


def _section(own: Mapping[str, Any]) -> str:
    parts = []
    note = own.get("note") or ""
    if own.get("picture"):
        parts.append(drawn(own["name"], note))
    elif note:
        parts.append(f'<p class="note">{escape(note)}</p>')
    if own.get("facts"):
        parts.append(pairs(own["facts"]))
    tables = "".join(
        table(list(map(tuple, t["columns"])), [("", row) for row in t["rows"]], t["caption"])
        for t in own.get("tables", ())
    )
    if tables:  # the numbers of a picture are folded below it
        parts.append(f"<details><summary>Numbers</summary>{tables}</details>" if own.get("picture") else tables)
    if own.get("code"):
        parts.append(f'<pre tabindex="0"><code>{escape(own["code"])}</code></pre>')
    return section(own["name"], escape(own["title"]), "\n".join(parts))
