"use strict";
// Tables by keyboard: each table is one tab stop. Arrow keys move between the heading and the rows, and within a row between what
// can be used there; Home and End go to the first and the last row. In a report, a heading sorts.
window.pgMopTables = (function () {
    const USED = "button, a, input";
    const heads = table => [...(table.tHead?.querySelectorAll("button") || [])];
    const rows = table => [...(table.tBodies[0]?.rows || [])];
    const within = row => [...row.querySelectorAll(USED)];
    // the one element that Tab reaches: the focused one, the one before an update, or the first row
    function settle(table) {
        const all = [...heads(table), ...rows(table), ...rows(table).flatMap(within)];
        if (!all.length) return;
        const focused = table.contains(document.activeElement) ? document.activeElement : null;
        const name = table.dataset.at,
            before = name ? all.find(own => own.dataset.focus === name) : null;
        const at = (focused && all.includes(focused) ? focused : null) || before || rows(table)[0] || all[0];
        for (const own of all) own.tabIndex = own === at ? 0 : -1;
    }
    function go(table, to) {
        if (!to) return;
        table.dataset.at = to.dataset.focus || "";
        to.focus();
        settle(table);
    }
    function roving(table) {
        if (table.dataset.roving) return settle(table);
        table.dataset.roving = "1";
        table.addEventListener("focusin", event => {
            if (event.target.dataset.focus) table.dataset.at = event.target.dataset.focus;
            settle(table);
        });
        table.addEventListener("keydown", event => {
            const own = event.target,
                row = own.closest("tbody tr"),
                all = rows(table),
                titles = heads(table);
            if (own.matches("input:not([type=checkbox]), select, textarea")) return;
            const place = all.indexOf(row);
            let to = null;
            if (event.key === "ArrowDown") to = row ? all[place + 1] : all[0];
            else if (event.key === "ArrowUp") to = row ? (place ? all[place - 1] : titles[0]) : null;
            else if (event.key === "Home") to = all[0];
            else if (event.key === "End") to = all[all.length - 1];
            else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
                const line = row ? [row, ...within(row)] : titles;
                to = line[line.indexOf(own) + (event.key === "ArrowRight" ? 1 : -1)];
            } else return;
            event.preventDefault();
            go(table, to);
        });
        settle(table);
    }

    // --- a report's tables: a heading sorts ----------------------------------------------------------------
    function sorting(table) {
        const titles = [...table.querySelectorAll("th")],
            body = table.tBodies[0];
        titles.forEach((head, column) =>
            head.querySelector("button")?.addEventListener("click", () => {
                const up = head.getAttribute("aria-sort") !== "ascending";
                titles.forEach(h => h.removeAttribute("aria-sort"));
                head.setAttribute("aria-sort", up ? "ascending" : "descending");
                const numeric = head.classList.contains("number");
                const value = row => {
                    const cell = row.cells[column],
                        text = cell.dataset.v || cell.textContent;
                    return numeric ? (text === "" ? NaN : +text.replace(/,/g, "")) : text;
                };
                const sorted = [...body.rows]
                    .map(row => [value(row), row])
                    .sort(([a], [b]) => {
                        if (numeric) return isNaN(a) ? (isNaN(b) ? 0 : 1) : isNaN(b) ? -1 : (a - b) * (up ? 1 : -1);
                        return a === "" ? (b === "" ? 0 : 1) : b === "" ? -1 : a.localeCompare(b) * (up ? 1 : -1);
                    });
                body.append(...sorted.map(([, row]) => row));
            }),
        );
    }
    // (the live page has no table yet, and sorts on the server)
    for (const table of document.querySelectorAll("table")) {
        sorting(table);
        for (const row of rows(table)) row.tabIndex = -1;
        roving(table);
    }
    for (const row of document.querySelectorAll("#board tr[data-key]")) {
        row.setAttribute("aria-selected", "false");
        row.addEventListener("click", () => window.pgMopReport.mark(+row.dataset.key));
        row.addEventListener("keydown", event => {
            if (event.key !== "Enter" && event.key !== " ") return;
            window.pgMopReport.mark(+row.dataset.key);
            event.preventDefault();
        });
    }
    return { roving, settle };
})();
