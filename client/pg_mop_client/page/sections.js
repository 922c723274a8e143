"use strict";
// Sections of a report about a model (model_data.py): facts, tables, and pictures that model.js draws.
window.pgMopSections = function ({ pairs, plainTable, saves, $ }) {
    const { el } = window.pgMopReport;
    function section(own) {
        const tables = (own.tables || []).map(t => plainTable(t.columns.map(([name]) => name), t.rows, t.caption, t.columns.map(([, numeric]) => numeric)));
        return el("section", { "aria-labelledby": own.name + "-title" }, el("h2", { id: own.name + "-title" }, own.title),
            ...(own.note ? [el("p", { class: "note" }, own.note)] : []),
            ...(own.picture ? [el("div", { class: "picture", id: own.name + "-picture" })] : []),
            ...(own.facts ? [pairs(own.facts)] : []),
            ...(own.picture && tables.length ? [el("details", {}, el("summary", {}, "Numbers"), ...tables)] : tables),
            ...(own.code ? [el("pre", { tabindex: "0" }, el("code", {}, own.code))] : []));
    }
    // the elements of sections; when they are in the page, `draw` draws their pictures
    const build = given => given.map(section);
    function draw(given) {
        const drawn = given.filter(own => own.picture);
        window.pgMopModel.draw(Object.fromEntries(drawn.map(own => [own.name, own.picture])));
        for (const { name } of drawn) $(name + "-picture").after(saves(name));
    }
    return { build, draw };
};
