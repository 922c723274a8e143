"use strict";
// The live page's lists: of runs, with a search, a filter, an order and a summary of each run; and of named models.
window.pgMopLists = function ({ asked, change, filter, fill, keepingFocus, pages, button, notes, submitting, $ }) {
    const { el, show } = window.pgMopReport,
        { clock, hour, sparkline, copying, first } = window.pgMopStrip,
        { roving } = window.pgMopTables;

    // --- runs ----------------------------------------------------------------------------------------------
    const COLUMNS = [
        ["compare"],
        ["run", "run"],
        ["state", "status"],
        ["best"],
        ["over time"],
        ["failed"],
        ["note"],
        ["models", "models"],
        ["function", "function"],
        ["configurations", "configurations"],
        ["begun", "begun"],
        ["time", "seconds"],
        ["owner", "owner"],
    ];
    const picked = new Set();
    function local(epoch) {
        return el(
            "time",
            { datetime: new Date(epoch * 1000).toISOString(), title: new Date(epoch * 1000).toISOString() },
            new Date(epoch * 1000).toLocaleString([], { dateStyle: "short", timeStyle: "short" }),
        );
    }
    function stateCell(r, s) {
        const tone = s && s.summary.status === r.status ? s.summary : null;
        const cell = [
            el("span", { class: tone ? "tone-" + tone.tone : "state-" + r.status }, tone ? tone.state : r.status),
        ];
        if (r.status === "running" && r.total) {
            cell.push(
                el("progress", { max: r.total, value: r.done, "aria-label": `Finished units of run ${r.run_id}` }),
            );
            cell.push(
                el(
                    "span",
                    { class: "note" },
                    `${Math.floor((100 * r.done) / r.total)} %` +
                        (r.seconds_left ? `, done at ${hour(r.seconds_left)}` : ""),
                ),
            );
        } else if (r.error && r.status !== "cancelled")
            cell.push(el("span", { class: "note clip", title: r.error }, " " + first(r.error)));
        return cell;
    }
    function bestCell(s) {
        const best = s?.summary.best;
        if (!best) return [el("span", { class: "note" }, s ? "–" : "")];
        const given = Object.entries(best.parameters)
            .map(([name, value]) => `${name} ${show(value)}`)
            .join(", ");
        return [
            el("b", {}, show(best.value)),
            el(
                "span",
                { class: "note clip", title: given },
                ` ${best.series}, configuration ${best.mst_key}${given ? ": " + given : ""}`,
            ),
        ];
    }
    function runRow(r, s) {
        const box = el("input", {
            type: "checkbox",
            "aria-label": `compare run ${r.run_id}`,
            "data-focus": "box" + r.run_id,
        });
        box.checked = picked.has(r.run_id);
        box.addEventListener("change", () => {
            if (box.checked) picked.add(r.run_id);
            else picked.delete(r.run_id);
            $("compare").disabled = picked.size < 2 || picked.size > 6;
        });
        const points = s?.summary.over_time || [],
            sum = s?.summary;
        const cells = [
            [el("label", { class: "box" }, box)],
            [el("a", { href: "/run/" + r.run_id, "data-focus": "run" + r.run_id }, String(r.run_id))],
            stateCell(r, s),
            bestCell(s),
            points.length > 1 ? [sparkline(points, `Best value of run ${r.run_id} over time`, 90, 24)] : [],
            sum ? [sum.failed ? el("span", { class: "tone-warn" }, `${sum.failed} of ${sum.of}`) : "–"] : [],
            notes.shown(r.run_id, r.note, r.tags),
            [r.model_output_table],
            [r.function],
            [String(r.configurations)],
            [local(r.begun)],
            [r.seconds === null ? "" : clock(r.seconds)],
            [r.owner],
        ];
        const row = el("tr", { "data-focus": "row" + r.run_id }, ...cells.map(cell => el("td", {}, ...cell)));
        row.addEventListener("keydown", event => {
            if (event.target !== row || event.key !== "Enter") return;
            location.href = "/run/" + r.run_id;
        });
        return row;
    }
    function head(table) {
        const sort = asked.get("sort") || "run",
            down = (asked.get("desc") || (asked.get("sort") ? "" : "1")) === "1";
        fill((table.tHead.id ||= "heads"), [sort, down], () => [
            el(
                "tr",
                {},
                ...COLUMNS.map(([name, by]) => {
                    if (!by) return el("th", { scope: "col" }, el("span", {}, name));
                    const made = el(
                        "th",
                        { scope: "col" },
                        button(
                            name,
                            () =>
                                change(() => {
                                    const again =
                                        (asked.get("sort") || "run") === by &&
                                        !((asked.get("desc") || (asked.get("sort") ? "" : "1")) === "1");
                                    asked.set("sort", by);
                                    if (again) asked.set("desc", "1");
                                    else asked.delete("desc");
                                    asked.delete("page");
                                }),
                            { "data-focus": "head" + by },
                        ),
                    );
                    if (sort === by) made.setAttribute("aria-sort", down ? "descending" : "ascending");
                    return made;
                }),
            ),
        ]);
    }
    const begin = schema => [
        [
            "Train a model of an ordinary table",
            `SELECT ${schema}.mop_train('people', 'leaving', 'leaves', id => 'id', time_limit => '2 min');`,
        ],
        [
            "Search the parameters of your own nets",
            `SELECT ${schema}.mop_search('people_packed', 'found', 'nets', $$ {'loss': ['categorical_crossentropy'],\n    'metrics': [['accuracy']], 'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.0001, 0.1, 'log']}],\n    'batch_size': [16, 32]} $$);`,
        ],
        [
            "See what a call will take, before it runs",
            `SELECT ${schema}.mop_explain($$ SELECT ${schema}.mop_train('people', 'leaving', 'leaves', id => 'id') $$);`,
        ],
    ];
    let schema = "madlib";
    function showList(found) {
        schema = found.schema;
        $("title").textContent = document.title = "Runs";
        $("headline").textContent = "";
        const narrowed = asked.get("words") || asked.get("state");
        $("caption").textContent = found.count
            ? `${found.count} run${found.count === 1 ? "" : "s"}`
            : narrowed
              ? "No run fits the search."
              : "No runs yet.";
        $("begin").hidden = !!(found.count || narrowed);
        if (!$("begin").hidden)
            fill("begin", begin(found.schema), given => [
                el("p", {}, "Three statements to begin with:"),
                ...given.map(([what, sql]) =>
                    el(
                        "div",
                        {},
                        el("p", {}, what, " ", copying(sql, "Copy SQL", "Copy SQL: " + what)),
                        el("pre", { tabindex: "0" }, el("code", {}, sql)),
                    ),
                ),
            ]);
        const table = $("table");
        head(table);
        keepingFocus(() =>
            table.tBodies[0].replaceChildren(...found.runs.map(r => runRow(r, found.summaries?.[r.run_id]))),
        );
        roving(table);
        pages(found.page, found.pages);
        return found.pending ? 700 : found.runs.some(r => r.status === "running") ? 2000 : 5000;
    }
    function beginList() {
        $("words").value = asked.get("words") || "";
        $("of-state").value = asked.get("state") || "";
        $("words").addEventListener("input", () => filter("words", $("words").value));
        $("of-state").addEventListener("change", () => filter("state", $("of-state").value));
        $("find").addEventListener("submit", event => event.preventDefault());
        $("start").addEventListener("click", () => submitting.open(begin(schema)[0][1].replace(/;$/, ""), false));
        $("compare").addEventListener("click", () => {
            location.href = "/compare?" + new URLSearchParams([...picked].map(id => ["run", id]));
        });
    }

    // --- named models --------------------------------------------------------------------------------------
    function showModels(found) {
        $("title").textContent = document.title = "Models";
        $("caption").textContent = found.models.length
            ? `${found.more ? "The first " : ""}${found.models.length} named models, each with its version in use`
            : "No named models yet.";
        const table = $("table");
        if (!table.tHead.rows.length)
            table.tHead.append(
                el(
                    "tr",
                    {},
                    ...[
                        "model",
                        "version",
                        "versions",
                        "target",
                        "kind",
                        "measures",
                        "made",
                        "owner",
                        "description",
                    ].map(name => el("th", { scope: "col" }, el("span", {}, name))),
                ),
            );
        keepingFocus(() =>
            table.tBodies[0].replaceChildren(
                ...found.models.map(m => {
                    const link = el(
                        "a",
                        { href: "/model?" + new URLSearchParams({ name: m.name }), "data-focus": "model" + m.name },
                        m.name,
                    );
                    const measures = Object.entries(m.metrics)
                        .map(([name, value]) => `${name} ${show(value)}`)
                        .join(", ");
                    return el(
                        "tr",
                        { "data-focus": "row" + m.name },
                        ...[
                            link,
                            m.in_use ? m.version : "none in use",
                            m.versions,
                            m.target,
                            m.kind,
                            measures,
                            m.created,
                            m.owner,
                            m.description,
                        ].map(cell => el("td", {}, cell instanceof Node ? cell : cell === null ? "" : String(cell))),
                    );
                }),
            ),
        );
        roving(table);
        return 5000;
    }
    return { showList, beginList, showModels };
};
