"use strict";
// Two parameters and the result: a map with a cell for each pair of their values (numbers in classes of equal width, on the axis
// that is shown). A cell has the median result of its configurations. page.js has the tools. Users' text becomes text.
(function () {
    const report = window.pgMopReport,
        { picture, nothing, at, ticks, el, show, mark, marked, tell } = report;
    const { see, axis, place, value, has, cut, isNumber } = window.pgMopAxes,
        CLASSES = 8,
        WORDS = 20;
    const chosen = {}; // {x, y}: names
    let most = 0;

    function take(data) {
        see(data);
        const series = data.measure.series,
            names = window.pgMopSlices.sorted(data);
        const rows = data.configurations.filter(c => isNumber(c.last[series]) && c.status !== "failed");
        most = Math.max(most, rows.length);
        // of a large run, those that are not drawn one by one count, too: they have neither a number nor a rank here
        for (const [result, ...values] of data.others || [])
            rows.push({
                mst_key: null,
                rank: Infinity,
                last: { [series]: result },
                parameters: Object.fromEntries(data.varied.map((name, i) => [name, values[i]])),
            });
        const x = names.includes(chosen.x) ? chosen.x : names[0],
            y = names.includes(chosen.y) && chosen.y !== x ? chosen.y : names.find(n => n !== x);
        return {
            names,
            series,
            x,
            y,
            rows: y === undefined ? [] : rows.filter(c => has(value(c, x)) && has(value(c, y))),
            goal: data.measure.goal,
        };
    }
    function median(values) {
        const own = [...values].sort((a, b) => a - b),
            half = own.length >> 1;
        return own.length % 2 ? own[half] : (own[half - 1] + own[half]) / 2;
    }
    // the classes of an axis: how many, which one a value has, what a class is called
    function classes(a) {
        const count = a.words
            ? Math.min(a.words.length, WORDS)
            : a.low === a.high
              ? 1
              : Math.min(CLASSES, a.values.length);
        const where = place(a, 0, count),
            back = v =>
                a.log
                    ? Math.exp(Math.log(a.low) + (v / count) * (Math.log(a.high) - Math.log(a.low)))
                    : a.low + (v / count) * (a.high - a.low);
        return {
            count,
            of: v => Math.min(count - 1, Math.max(0, Math.floor(where(v)))),
            called: i => (a.words ? show(a.words[i]) : `${show(back(i))} to ${show(back(i + 1))}`),
        };
    }
    function draw(current) {
        let taken = take(current());
        if (most < 3 || taken.y === undefined)
            return nothing("surface", "It takes three configurations with a result, and two parameters that vary.");
        let cells = new Map(),
            here = null,
            box = null,
            X,
            Y;
        const select = which => {
            const made_ = el(
                "select",
                { id: "surface-" + which },
                ...taken.names.map(name => el("option", { value: name }, cut(name, 30))),
            );
            made_.value = taken[which];
            made_.addEventListener("change", () => {
                if (made_.value === taken[which === "x" ? "y" : "x"]) chosen[which === "x" ? "y" : "x"] = taken[which]; // (they change places)
                chosen[which] = made_.value;
                here = null;
                made.redraw();
                for (const own of ["x", "y"]) selects[own].value = taken[own];
            });
            return made_;
        };
        const selects = { x: select("x"), y: select("y") };
        const label = () =>
            `${taken.series} by ${taken.x} and ${taken.y}: ${cells.size} cells with ${taken.rows.length} configurations.`;
        const made = picture(
            "surface",
            label,
            (svg, width) => {
                taken = take(current());
                const { rows, series, x, y, goal } = taken,
                    ax = axis(x, CLASSES),
                    ay = axis(y, CLASSES);
                X = classes(ax);
                Y = classes(ay);
                const left = 96,
                    right = width - 16,
                    top = 12,
                    high = Math.min(360, Math.max(140, 36 * Y.count)),
                    bottom = top + high;
                box = { left, right, top, bottom };
                cells = new Map();
                for (const c of rows) {
                    const key = X.of(value(c, x)) + " " + Y.of(value(c, y));
                    cells.set(key, [...(cells.get(key) || []), c]);
                }
                if (!rows.length) svg.append(el("text", { x: left, y: 30 }, "nothing to show"));
                const of = new Map([...cells].map(([key, own]) => [key, median(own.map(c => c.last[series]))]));
                const low = Math.min(...of.values()),
                    greatest = Math.max(...of.values());
                const w = (right - left) / X.count,
                    h = high / Y.count;
                for (const [key, own] of cells) {
                    const [i, j] = key.split(" ").map(Number),
                        part = greatest > low ? (of.get(key) - low) / (greatest - low) : 0.5,
                        good = goal === "max" ? part : 1 - part;
                    const cx = left + i * w,
                        cy = bottom - (j + 1) * h;
                    svg.append(
                        el("rect", {
                            class: "cell",
                            x: (cx + 1).toFixed(1),
                            y: (cy + 1).toFixed(1),
                            width: (w - 2).toFixed(1),
                            height: (h - 2).toFixed(1),
                            fill: "var(--train)",
                            "fill-opacity": (0.12 + 0.83 * good).toFixed(2),
                            ...(own.some(c => c.mst_key !== null && c.mst_key === marked())
                                ? { stroke: "var(--mark)", "stroke-width": 3 }
                                : {}),
                        }),
                    );
                    if (w > 44 && h > 16)
                        svg.append(
                            el(
                                "text",
                                { x: cx + w / 2, y: cy + h / 2 + 4, "text-anchor": "middle", style: "fill:var(--ink)" },
                                show(of.get(key)),
                            ),
                        );
                }
                svg.append(
                    el("path", { class: "axis", style: "stroke:var(--soft)", d: `M${left} ${top}V${bottom}H${right}` }),
                );
                const tx = ax.words
                    ? ax.words.slice(0, WORDS)
                    : ax.low === ax.high
                      ? [ax.low]
                      : ticks(ax.low, ax.high, Math.min(6, width / 110), ax.log);
                for (const tick of tx)
                    svg.append(
                        el(
                            "text",
                            {
                                x: place(ax, left, ax.words ? left + w * ax.words.length : right)(tick),
                                y: bottom + 15,
                                "text-anchor": "middle",
                            },
                            cut(show(tick), Math.max(4, Math.floor((right - left) / tx.length / 6.5))),
                            el("title", {}, show(tick)),
                        ),
                    );
                const ty = ay.words
                    ? ay.words.slice(0, WORDS)
                    : ay.low === ay.high
                      ? [ay.low]
                      : ticks(ay.low, ay.high, 5, ay.log);
                for (const tick of ty)
                    svg.append(
                        el(
                            "text",
                            {
                                x: left - 6,
                                y: place(ay, bottom, ay.words ? bottom - h * ay.words.length : top)(tick) + 4,
                                "text-anchor": "end",
                            },
                            cut(show(tick), 14),
                            el("title", {}, show(tick)),
                        ),
                    );
                svg.append(
                    el(
                        "text",
                        { x: right, y: bottom + 31, "text-anchor": "end", style: "fill:var(--ink)" },
                        cut(x, 40) + (ax.log ? ", logarithmic" : ""),
                    ),
                    el(
                        "text",
                        { x: 4, y: bottom + 31, style: "fill:var(--ink)" },
                        "up: " + cut(y, 24) + (ay.log ? ", logarithmic" : ""),
                    ),
                );
                if (here) outline(svg);
                return bottom + 40;
            },
            (key, say) => {
                const [dx, dy] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[
                    key
                ] || [0, 0];
                if (key === "Enter" && here && cells.get(here.join(" "))) {
                    choose(cells.get(here.join(" ")));
                    return true;
                }
                if (!dx && !dy) return false;
                here = here
                    ? [
                          Math.min(X.count - 1, Math.max(0, here[0] + dx)),
                          Math.min(Y.count - 1, Math.max(0, here[1] + dy)),
                      ]
                    : [0, 0];
                outline(made.svg);
                say(said(here));
                return true;
            },
        );
        function outline(svg) {
            svg.querySelectorAll(".here").forEach(n => n.remove());
            const w = (box.right - box.left) / X.count,
                h = (box.bottom - box.top) / Y.count;
            svg.append(
                el("rect", {
                    class: "here",
                    x: box.left + here[0] * w,
                    y: box.bottom - (here[1] + 1) * h,
                    width: w,
                    height: h,
                    fill: "none",
                    stroke: "var(--ink)",
                    "stroke-width": 2,
                }),
            );
        }
        function choose(own) {
            if (best(own).mst_key !== null) mark(best(own).mst_key);
        }
        function best(own) {
            return own.reduce((a, b) => (a.rank <= b.rank ? a : b));
        }
        function said([i, j]) {
            const own = cells.get(i + " " + j) || [],
                where = `${taken.x} ${X.called(i)}, ${taken.y} ${Y.called(j)}: `;
            if (!own.length) return where + "no configuration";
            return (
                where +
                `median ${taken.series} ${show(median(own.map(c => c.last[taken.series])))} of ${own.length} configuration${own.length === 1 ? "" : "s"}` +
                (best(own).mst_key === null ? "" : `; the best is ${tell(best(own).mst_key)}`)
            );
        }
        function under(event) {
            const [px, py] = at(made.svg, event),
                i = Math.floor(((px - box.left) / (box.right - box.left)) * X.count),
                j = Math.floor(((box.bottom - py) / (box.bottom - box.top)) * Y.count);
            return i >= 0 && i < X.count && j >= 0 && j < Y.count ? [i, j] : null;
        }
        made.svg.addEventListener("pointermove", event => {
            const cell = under(event);
            if (cell) {
                here = cell;
                outline(made.svg);
                made.say(said(cell));
            }
        });
        made.svg.addEventListener("click", event => {
            const cell = under(event),
                own = cell && cells.get(cell.join(" "));
            if (own) choose(own);
        });
        made.holder.prepend(
            el(
                "div",
                { class: "controls" },
                el("label", { for: "surface-x" }, "Across "),
                selects.x,
                el("label", { for: "surface-y" }, "up "),
                selects.y,
            ),
            el(
                "p",
                { class: "note" },
                "a cell's number is the median result of its configurations; the stronger, the better",
            ),
        );
    }
    report.add("surface", draw, data => {
        const t = take(data);
        return [most < 3, t.names.join("\n")].join();
    });
})();
