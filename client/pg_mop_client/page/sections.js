"use strict";
// Sections of a report about a model (model_data.py): facts, tables, and pictures that model.js draws.
window.pgMopSections = function ({ pairs, plainTable, saves, $ }) {
    const { el } = window.pgMopReport;
    function section(own) {
        const tables = (own.tables || []).map(t =>
            plainTable(
                t.columns.map(([name]) => name),
                t.rows,
                t.caption,
                t.columns.map(([, numeric]) => numeric),
            ),
        );
        return el(
            "section",
            { "aria-labelledby": own.name + "-title" },
            el("h2", { id: own.name + "-title" }, own.title),
            ...(own.note ? [el("p", { class: "note" }, own.note)] : []),
            ...(own.picture ? [el("div", { class: "picture", id: own.name + "-picture" })] : []),
            ...(own.facts ? [pairs(own.facts)] : []),
            ...(own.picture && tables.length ? [el("details", {}, el("summary", {}, "Numbers"), ...tables)] : tables),
            ...(own.code ? [el("pre", { tabindex: "0" }, el("code", {}, own.code))] : []),
        );
    }
    // the elements of sections; when they are in the page, `draw` draws their pictures
    const build = given => given.map(section);
    function draw(given) {
        const drawn = given.filter(own => own.picture);
        window.pgMopModel.draw(Object.fromEntries(drawn.map(own => [own.name, own.picture])));
        for (const { name } of drawn) $(name + "-picture").after(saves(name));
    }
    const percent = share => (share === null ? null : `${+(100 * share).toPrecision(3)} %`);
    // the most frequent values of a category, {value: rows}
    const frequent = json =>
        json === null
            ? null
            : Object.entries(JSON.parse(json))
                  .sort((a, b) => b[1] - a[1])
                  .slice(0, 5)
                  .map(([word, count]) => `${word} (${count})`)
                  .join(", ");
    // how a packed table was made of its columns (mop_feature_info)
    const columns = ({ role, columns: rows }) =>
        plainTable(
            [
                "column",
                "type",
                "packed as",
                "elements",
                "NULL",
                "mean",
                "deviation",
                "least",
                "greatest",
                "most frequent values",
            ],
            rows.map(c => [
                c.column_name,
                c.sql_type,
                c.feature,
                c.elements,
                percent(c.null_share),
                c.mean,
                c.deviation,
                c.lowest,
                c.highest,
                frequent(c.top_values),
            ]),
            `The transform of the ${role}: ${rows.length} ${rows.length === 1 ? "column" : "columns"}`,
            [false, false, false, true, true, true, true, true, true, false],
        );
    // the rows of now, compared with those that were packed (mop_drift)
    const drift = ({ source, rows }) =>
        plainTable(
            ["column", "stability index", "NULL then", "NULL now", "verdict"],
            rows.map(r => [
                r.column_name,
                r.stability,
                percent(r.null_share_then),
                percent(r.null_share_now),
                el("span", { class: "verdict-" + r.verdict }, r.verdict),
            ]),
            `${source}, by the population stability index: below 0.1 stable, above 0.25 drifted`,
            [false, true, true, true, false],
        );
    return { build, draw, columns, drift };
};
