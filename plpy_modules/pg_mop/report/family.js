"use strict";
// The family tree of a search whose trials are made from other ones: from left to right by generation, each trial coloured by the
// run's measure. page.js has the tools. Users' text becomes text, never markup.
(function () {
    const report = window.pgMopReport,
        { picture, nothing, scale, ticks, el, show, mark, marked, row, measure } = report;
    // how a trial began: the line that leads to it. (Lines differ by their dashes, too.)
    const LINES = {
        same: ["began with its parent's function", "stroke:var(--c2);stroke-width:2.2"],
        inherits: ["began with its parent's weights", "stroke:var(--c0);stroke-width:1.6;stroke-dasharray:7 3"],
        anew: ["began anew", "stroke:var(--grey);stroke-width:1.4;stroke-dasharray:2 3"],
    };
    const began = node => (!node.inherits ? "anew" : node.same ? "same" : "inherits");

    function family(current) {
        const nodes = () => current().family || [];
        if (!nodes().length) return nothing("family", "No trial was made from another one.");
        const children = place =>
            nodes()
                .map((n, i) => i)
                .filter(i => nodes()[i].parent === place);
        const better = (a, b) => (current().measure.goal === "max" ? a > b : a < b);
        const known = () =>
            nodes()
                .map((n, i) => i)
                .filter(i => nodes()[i].value !== null);
        const best = () =>
            known().reduce(
                (found, i) => (found === null || better(nodes()[i].value, nodes()[found].value) ? i : found),
                null,
            );
        // a trial and those that it descends from, by their places
        function line(place) {
            const made = [];
            for (let i = place; i !== null && i !== undefined; i = nodes()[i].parent) made.unshift(i);
            return made;
        }
        function told(place) {
            const node = nodes()[place],
                below = children(place).length + (node.more || 0),
                own = row(node.mst_key);
            return [
                `trial ${node.mst_key}${own ? ` (rank ${own.rank})` : ""}, generation ${node.x}`,
                node.changed,
                node.parent === null
                    ? node.above
                        ? `${node.above} generations before it are left out`
                        : null
                    : LINES[began(node)][0],
                node.inherited,
                node.value === null ? "no value of " + measure() : `${measure()} ${show(node.value)}`,
                below
                    ? `${below} ${below === 1 ? "trial" : "trials"} made from it${node.more ? `, ${node.more} of them or of their line left out` : ""}`
                    : null,
            ]
                .filter(Boolean)
                .join("; ");
        }
        let x,
            y,
            here = null;
        function label() {
            const first = best(),
                generations = Math.max(...nodes().map(n => n.x)) + 1,
                all = nodes().length + nodes().reduce((sum, n) => sum + (n.more || 0), 0);
            const before =
                first === null
                    ? []
                    : line(first)
                          .slice(0, -1)
                          .map(i => nodes()[i].mst_key);
            const count = `Family tree of ${all} trials in ${generations} ${generations === 1 ? "generation" : "generations"}`;
            if (first === null) return count + ".";
            return `${count}; the best, ${nodes()[first].mst_key} with ${measure()} ${show(nodes()[first].value)}, ${before.length ? `descends from ${before.slice(-12).join(", ")}` : "was made from no other trial"}.`;
        }
        const made = picture(
            "family",
            label,
            (svg, width) => {
                const rows = Math.max(...nodes().map(n => n.y)) + 1,
                    step = Math.min(22, Math.max(8, 900 / rows)),
                    last = Math.max(...nodes().map(n => n.x));
                const left = 34,
                    right = width - 92,
                    top = 16,
                    bottom = top + rows * step;
                // (by rank: one very bad value would make all others alike)
                const values = [...new Set(known().map(i => nodes()[i].value))].sort((a, b) => (better(a, b) ? 1 : -1));
                const good = v => (values.length < 2 ? 1 : values.indexOf(v) / (values.length - 1));
                const from = Math.min(...nodes().map(n => n.x)); // (of a long line, its beginning may be left out)
                x = scale(from, Math.max(from + 1, last), left, right);
                y = place => top + (place + 0.5) * step;
                for (const tick of ticks(from, last, Math.min(12, width / 60)).filter(Number.isInteger))
                    svg.append(
                        el("path", { class: "axis", d: `M${x(tick)} ${top - 8}V${bottom}` }),
                        el("text", { x: x(tick), y: bottom + 14, "text-anchor": "middle" }, show(tick)),
                    );
                const of = new Set(best() === null ? [] : line(best())),
                    mine = nodes().findIndex(n => n.mst_key === marked());
                const halo = new Set(mine < 0 ? [] : line(mine));
                nodes().forEach((node, place) => {
                    if (node.parent === null) return;
                    const parent = nodes()[node.parent],
                        middle = (x(parent.x) + x(node.x)) / 2;
                    const d = `M${x(parent.x)} ${y(parent.y)}C${middle} ${y(parent.y)} ${middle} ${y(node.y)} ${x(node.x)} ${y(node.y)}`;
                    if (halo.has(place)) svg.append(el("path", { class: "halo", d }));
                    svg.append(
                        el("path", {
                            class: "curve top" + (of.has(place) ? " lead" : ""),
                            style: LINES[began(node)][1] + (of.has(place) ? ";stroke-width:3.6" : ""),
                            d,
                        }),
                    );
                });
                const filtered = current().shown !== undefined && current().shown < current().all;
                nodes().forEach((node, place) => {
                    const first = place === best(),
                        own = node.mst_key === marked(),
                        r = first || own ? 7 : Math.min(5, step / 2);
                    const dot = el("circle", {
                        class: "node" + (own ? " marked" : first ? " first" : ""),
                        cx: x(node.x),
                        cy: y(node.y),
                        r,
                        stroke: own ? "var(--mark)" : first ? "var(--ink)" : "var(--soft)",
                        "stroke-width": own || first ? 2.5 : 1,
                        fill: node.value === null ? "var(--paper)" : "var(--train)",
                    });
                    // (the better, the fuller: on a ground of paper, so that no line is seen through it)
                    if (node.value !== null)
                        dot.style.fill = `color-mix(in srgb, var(--train) ${Math.round(10 + 90 * good(node.value))}%, var(--paper))`;
                    if (filtered && !row(node.mst_key)) dot.style.opacity = 0.35;
                    svg.append(dot);
                    const text = node.mst_key + (node.more ? ` (+${node.more})` : "");
                    // (above the lines that begin here)
                    const inner = children(place).length > 0;
                    if (first || own || step >= 11)
                        svg.append(
                            el(
                                "text",
                                {
                                    x: x(node.x) + (inner ? -3 : r + 3),
                                    y: y(node.y) + (inner ? -r : 4),
                                    "text-anchor": inner ? "end" : "start",
                                    ...(first || own ? { class: "end" } : {}),
                                },
                                first && node.value !== null ? `${text}: ${show(node.value)}` : text,
                            ),
                        );
                });
                svg.append(el("text", { x: right + 82, y: bottom + 28, "text-anchor": "end" }, "generation"));
                return bottom + 34;
            },
            (key, say) => {
                if (key === "Enter" && here !== null && nodes()[here]) {
                    mark(nodes()[here].mst_key);
                    point(here, say);
                    return true;
                }
                if (key === "Home" && best() !== null) here = best();
                else if (!key.startsWith("Arrow")) return false;
                else if (here === null || !nodes()[here]) here = best() ?? 0;
                else if (key === "ArrowLeft") here = nodes()[here].parent ?? here;
                else if (key === "ArrowRight") here = children(here)[0] ?? here;
                else {
                    // the next one above or below, of the same generation
                    const same = nodes()
                        .map((n, i) => i)
                        .filter(i => nodes()[i].x === nodes()[here].x)
                        .sort((a, b) => nodes()[a].y - nodes()[b].y);
                    here =
                        same[
                            Math.min(same.length - 1, Math.max(0, same.indexOf(here) + (key === "ArrowDown" ? 1 : -1)))
                        ];
                }
                point(here, say);
                return true;
            },
        );
        function point(place, say) {
            const node = nodes()[place];
            made.ring(x(node.x), y(node.y), 10);
            say(told(place));
        }
        made.readable(
            () => nodes().map((node, place) => [x(node.x), y(node.y), place]),
            17,
            place => point(place, made.say),
            place => mark(nodes()[place].mst_key),
        );
        const key = el("div", { class: "controls legend" });
        for (const [name, [text, look]] of Object.entries(LINES))
            if (nodes().some(n => n.parent !== null && began(n) === name)) {
                const sample = el(
                    "svg",
                    { width: 34, height: 10, viewBox: "0 0 34 10", "aria-hidden": "true", class: "sample" },
                    el("path", { class: "curve top", style: look, d: "M0 5H34" }),
                );
                key.append(el("span", {}, sample, " " + text));
            }
        key.append(
            el(
                "span",
                { class: "note" },
                `the fuller a dot, the better its ${measure()}; thick: the line of the best trial`,
            ),
        );
        made.holder.prepend(key);
    }
    report.add("family", family, data =>
        [
            (data.family || []).length === 0,
            ...new Set((data.family || []).filter(n => n.parent !== null).map(began)),
        ].join(),
    );
})();
