"use strict";
// One configuration of a run, in a drawer beside the page: values, curves of both data sets, statements, units. The address names it.
window.pgMopDrawer = function ({ asked, ask, where, message, pairs, plainTable, button, parts, run, $ }) {
    const { el, show, scale, ticks } = window.pgMopReport,
        { copying, first } = window.pgMopStrip;
    let shown = null; // the configuration

    // the curves of a metric, of training rows dashed
    function curves(name, own) {
        const width = 380,
            height = 150,
            left = 44,
            right = width - 8,
            bottom = height - 22;
        const all = Object.values(own)
            .flat()
            .filter(p => p[1] !== null);
        const svg = el("svg", {
            role: "img",
            viewBox: `0 0 ${width} ${height}`,
            "aria-label": `${name} by iteration: ${Object.entries(own)
                .map(([d, p]) => `${d} ${show(p[p.length - 1][1])} at the end`)
                .join(", ")}.`,
        });
        if (!all.length) return svg;
        const xs = all.map(p => p[0]),
            ys = all.map(p => p[1]),
            low = Math.min(...ys),
            high = Math.max(...ys);
        const x = scale(Math.min(...xs), Math.max(...xs), left, right),
            y = scale(low, high, bottom, 18);
        for (const tick of ticks(low, high, 3))
            svg.append(
                el("path", { class: "axis", d: `M${left} ${y(tick)}H${right}` }),
                el("text", { x: left - 5, y: y(tick) + 4, "text-anchor": "end" }, show(tick)),
            );
        for (const tick of ticks(Math.min(...xs), Math.max(...xs), 5).filter(Number.isInteger))
            svg.append(el("text", { x: x(tick), y: bottom + 15, "text-anchor": "middle" }, show(tick)));
        for (const [dataset, points] of Object.entries(own)) {
            const given = points.filter(p => p[1] !== null),
                look = dataset === "training" ? "stroke:var(--c1);stroke-dasharray:6 4" : "stroke:var(--c0)";
            if (given.length > 1)
                svg.append(
                    el("path", {
                        class: "curve top",
                        style: look,
                        d: given
                            .map((p, i) => (i ? "L" : "M") + x(p[0]).toFixed(1) + " " + y(p[1]).toFixed(1))
                            .join(""),
                    }),
                );
            else
                for (const p of given)
                    svg.append(
                        el("circle", {
                            cx: x(p[0]),
                            cy: y(p[1]),
                            r: 4,
                            fill: dataset === "training" ? "var(--c1)" : "var(--c0)",
                        }),
                    );
        }
        svg.append(
            el(
                "text",
                { x: left, y: 11, style: "fill:var(--ink)" },
                `${name}: ${Object.keys(own)
                    .map(d => (d === "training" ? "training dashed" : d))
                    .join(", ")}`,
            ),
        );
        return svg;
    }
    function fill(found) {
        const metrics = {};
        for (const [series, points] of Object.entries(found.curves)) {
            const [dataset, name] = [series.slice(0, series.indexOf(" ")), series.slice(series.indexOf(" ") + 1)];
            (metrics[name] ||= {})[dataset] = points;
        }
        const close = button("Close", () => shut(), { id: "drawer-close" });
        $("drawer").replaceChildren(
            el("div", { class: "controls" }, el("h2", { id: "drawer-title" }, `Configuration ${found.mst_key}`), close),
            el(
                "p",
                {},
                `rank ${found.rank}, ${found.status}, ${found.iterations} iterations, ${show(found.seconds)} s of training`,
            ),
            ...(found.reason ? [el("p", { class: found.status === "failed" ? "error" : "note" }, found.reason)] : []),
            pairs({ ...found.last, ...found.parameters }),
            ...Object.entries(metrics).map(([name, own]) => curves(name, own)),
            ...(found.made_from
                ? [
                      el(
                          "p",
                          { class: "note" },
                          `It was made from ${found.made_from.mst_key}` +
                              (found.made_from.changed ? `, by a change: ${found.made_from.changed}` : "") +
                              (found.made_from.inherited ? `; ${found.made_from.inherited}` : "") +
                              ".",
                      ),
                  ]
                : []),
            ...(found.shares.length
                ? [
                      el(
                          "p",
                          { class: "note" },
                          `It shares its first iterations with ${found.shares.slice(0, 20).join(", ")}.`,
                      ),
                  ]
                : []),
            ...Object.entries(found.sql).map(([what, sql]) =>
                el("p", {}, what + " ", copying(sql, "Copy SQL", `Copy SQL: ${what}`)),
            ),
            ...(found.sql.predict ? measuring(found.mst_key) : []),
            el("details", {}, el("summary", {}, "Parameter strings"), pairs(found.strings)),
            el(
                "details",
                {},
                el("summary", {}, `The latest ${found.units.length} units`),
                plainTable(
                    ["iteration", "segment", "kind", "dataset", "attempt", "status", "loss", "seconds", "error"],
                    found.units.map(u => [
                        u.iteration,
                        u.segment,
                        u.kind,
                        u.dataset,
                        u.attempt,
                        u.status,
                        u.loss,
                        u.seconds,
                        u.error ? first(u.error) : null,
                    ]),
                    "Units",
                ),
            ),
        );
        close.focus();
    }
    // On request: what the model does on the run's packed rows. The server reads them with the role's rights, and writes nothing.
    function measuring(key) {
        const said = el("p", { role: "status", id: "drawer-said" }),
            holder = el("div", { id: "drawer-measured" });
        const go = button("Measure its model", measure, { id: "drawer-measure" });
        const end = button(
            "Cancel",
            async () => {
                try {
                    said.textContent = (await ask("/api/model/cancel", {})).said;
                } catch (problem) {
                    said.textContent = message(problem);
                }
            },
            { id: "drawer-cancel", hidden: "" },
        );
        async function measure() {
            go.disabled = true;
            end.hidden = false;
            said.textContent = "The server measures the model …";
            try {
                const found = await ask(`/api/run/${run}/evaluate`, { mst_key: key });
                if (!holder.isConnected) return;
                // (the page has parts of the same names)
                const sections = found.sections.map(own => ({ ...own, name: "own-" + own.name }));
                holder.replaceChildren(...parts.build(sections));
                parts.draw(sections);
                said.textContent = [`Measured on ${found.rows} rows of ${found.table}.`, ...found.notes].join(" ");
                go.textContent = "Measure it again";
            } catch (problem) {
                said.textContent = message(problem);
            }
            go.disabled = false;
            end.hidden = !/in progress/.test(said.textContent);
        }
        return [
            el("p", { class: "controls" }, go, end),
            el(
                "p",
                { class: "hint" },
                "On the run's validation rows, else its training rows: confusion matrix and curves, or predictions by truth, and the importance of the inputs.",
            ),
            said,
            holder,
        ];
    }
    async function open(key) {
        shown = key;
        asked.set("configuration", key);
        history.replaceState(null, "", where());
        $("drawer").hidden = false;
        try {
            const found = await ask(`/api/run/${run}/configuration?mst_key=${encodeURIComponent(key)}`);
            if (shown === key) fill(found);
        } catch (problem) {
            const close = button("Close", () => shut(), { id: "drawer-close" });
            $("drawer").replaceChildren(
                el("h2", { id: "drawer-title" }, "Configuration"),
                el("p", { class: "error" }, message(problem)),
                close,
            );
            close.focus();
        }
    }
    function shut() {
        const name = "details" + shown;
        shown = null;
        asked.delete("configuration");
        history.replaceState(null, "", where());
        $("drawer").hidden = true;
        $("drawer").replaceChildren();
        [...document.querySelectorAll("[data-focus]")].find(e => e.dataset.focus === name)?.focus();
    }
    $("drawer").addEventListener("keydown", event => {
        if (event.key === "Escape") shut();
    });
    return {
        open,
        first: () => {
            if (asked.get("configuration")) open(asked.get("configuration"));
        },
    };
};
