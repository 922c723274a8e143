"use strict";
// Parallel coordinates: an axis for each parameter, for the seconds and for the result, and a line for each configuration. Axes are
// reordered, and on the live page a part of an axis sets the filter. Users' text becomes text, never markup.
(function () {
    const report = window.pgMopReport,
        { picture, nothing, at, ticks, el, show, mark, tell, line, ordered, rows, row, add } = report;
    const { TIME, FEW, see, axis, place, between, told, moved, span, value, has, cut, isNumber } = window.pgMopAxes;
    const MOST = 9,
        NEAR = 14,
        TOP = 44;
    let order = null,
        most = 0; // names as somebody has ordered them; the most configurations with a result so far

    function names(data) {
        const all = [...data.varied.slice(0, MOST), TIME, data.measure.series],
            given = order || report.hooks?.axes() || [];
        const kept = given.filter(name => all.includes(name));
        return [...kept, ...all.filter(name => !kept.includes(name))];
    }
    function reorder(data, from, to) {
        const all = names(data),
            [name] = all.splice(from, 1);
        all.splice(to, 0, name);
        order = all;
        report.hooks?.reordered(all);
    }
    function draw(current) {
        let result,
            axes,
            shown,
            lines = [],
            xs = [],
            here = -1,
            drag = null,
            dragged = false;
        const bottom = 308,
            limits = name => report.hooks?.limits(name) || null;
        function take() {
            const data = current();
            see(data);
            result = data.measure.series;
            shown = rows().filter(c => isNumber(c.last[result]));
            axes = names(data).map(name => axis(name, FEW));
        }
        take();
        if (most < 2) return nothing("parallel", "It takes two configurations with a result.");
        const label = () =>
            `Parallel coordinates of ${shown.length} configurations: ${axes.map(a => a.name).join(", ")}.`;
        const made = picture(
            "parallel",
            label,
            (svg, width) => {
                take();
                const height = 330,
                    left = 40,
                    right = width - 60,
                    room = (right - left) / (axes.length - 1) / 6.2;
                xs = axes.map((_, i) => left + (i * (right - left)) / (axes.length - 1));
                lines = [];
                // the lines of a category are spread over its band, the best ones in the middle
                const spread = new Map(),
                    bands = axes.map(a => (a.words ? (bottom - TOP) / a.words.length : 0));
                axes.forEach((a, i) => {
                    if (!a.words) return;
                    const groups = new Map();
                    for (const c of shown)
                        if (has(value(c, a.name)))
                            groups.set(String(value(c, a.name)), [
                                ...(groups.get(String(value(c, a.name))) || []),
                                c.mst_key,
                            ]);
                    for (const keys of groups.values())
                        keys.forEach((key, k) =>
                            spread.set(
                                i + " " + key,
                                keys.length < 2 ? 0 : (k / (keys.length - 1) - 0.5) * bands[i] * 0.6,
                            ),
                        );
                });
                axes.forEach((a, i) => {
                    for (const [k] of (a.words || []).entries())
                        svg.append(
                            el("rect", {
                                class: "band",
                                x: xs[i] - 6,
                                width: 12,
                                rx: 2,
                                y: (TOP + k * bands[i] + bands[i] * 0.1).toFixed(1),
                                height: (bands[i] * 0.8).toFixed(1),
                            }),
                        );
                });
                for (const key of ordered(shown.map(c => c.mst_key))) {
                    const c = row(key);
                    // no line over a parameter that the configuration lacks; a single value between two gaps is a dot
                    const own = axes.map((a, i) => [
                        xs[i],
                        has(value(c, a.name))
                            ? place(a, bottom, TOP)(value(c, a.name)) + (spread.get(i + " " + key) || 0)
                            : null,
                    ]);
                    lines.push([key, own]);
                    const is = i => own[i] && own[i][1] !== null;
                    svg.append(
                        ...line(
                            key,
                            own
                                .map((p, i) =>
                                    is(i)
                                        ? (is(i - 1) ? "L" : "M") +
                                          p[0].toFixed(1) +
                                          " " +
                                          p[1].toFixed(1) +
                                          (is(i - 1) || is(i + 1) ? "" : "h.01")
                                        : "",
                                )
                                .join(""),
                            { "stroke-linecap": "round" },
                        ),
                    );
                }
                axes.forEach((a, i) => {
                    const now = span(a, bottom, TOP, limits(a.name));
                    svg.append(
                        el("path", {
                            class: "axis",
                            style: i === here ? "stroke:var(--accent);stroke-width:2.5" : "stroke:var(--soft)",
                            d: `M${xs[i]} ${TOP}V${bottom}`,
                        }),
                    );
                    if (now)
                        svg.append(
                            el("rect", {
                                class: "brush",
                                x: xs[i] - 7,
                                width: 14,
                                y: Math.min(...now) - 2,
                                height: Math.abs(now[1] - now[0]) + 4,
                            }),
                        );
                    svg.append(
                        el(
                            "text",
                            {
                                x: xs[i],
                                y: i % 2 && width < 700 ? 12 : 26,
                                "text-anchor": "middle",
                                class: "grip",
                                style: "fill:var(--ink)",
                            },
                            cut(a.name, Math.floor(room)),
                            el("title", {}, a.name),
                        ),
                    );
                    const words = a.words || (a.low === a.high ? [a.low] : ticks(a.low, a.high, 4, a.log));
                    for (const word of words.length > 12
                        ? words.filter((_, k) => k % Math.ceil(words.length / 12) === 0)
                        : words)
                        svg.append(
                            el(
                                "text",
                                { x: xs[i] + 8, y: place(a, bottom, TOP)(word) + 4 },
                                cut(show(word), Math.max(4, Math.floor(room))),
                                el("title", {}, show(word)),
                            ),
                        );
                });
                return height;
            },
            (key, say, event) => {
                const side = { ArrowRight: 1, ArrowLeft: -1 }[key],
                    up = { ArrowUp: 1, ArrowDown: -1 }[key];
                if (side) {
                    if (event.shiftKey && here >= 0) {
                        const to = Math.min(axes.length - 1, Math.max(0, here + side));
                        reorder(current(), here, to);
                        here = to;
                        made.redraw();
                        say(`${axes[here].name} is axis ${here + 1} of ${axes.length} now`);
                    } else {
                        here = Math.min(axes.length - 1, Math.max(0, here + side));
                        made.redraw();
                        say(`axis ${here + 1} of ${axes.length}, ${told(axes[here], limits(axes[here].name))}`);
                    }
                    return true;
                }
                if (here < 0 || !report.hooks || (!up && key !== "Delete" && key !== "Backspace")) return false;
                const given = up ? moved(axes[here], limits(axes[here].name), event.shiftKey ? 1 : 0, up) : null;
                report.hooks.limit(axes[here].name, given);
                made.redraw();
                say(told(axes[here], given));
                return true;
            },
        );

        // --- the pointer: lines are marked, axes moved by their names, parts of axes set the filter ------------
        const nearAxis = px => {
            const i = xs.reduce((best, x, k) => (Math.abs(x - px) < Math.abs(xs[best] - px) ? k : best), 0);
            return Math.abs(xs[i] - px) <= NEAR ? i : -1;
        };
        made.svg.addEventListener("pointerdown", event => {
            const [px, py] = at(made.svg, event),
                by_name = py < TOP - 12,
                room = (xs[1] - xs[0]) / 2;
            const i = by_name ? xs.findIndex(x => Math.abs(x - px) <= room) : nearAxis(px);
            dragged = false;
            if (i < 0 || (!by_name && !report.hooks)) return;
            drag = { i, by_name, from: by_name ? px : py };
            made.svg.setPointerCapture(event.pointerId);
            event.preventDefault();
        });
        made.svg.addEventListener("pointermove", event => {
            const [px, py] = at(made.svg, event);
            if (!drag) {
                const key = nearest(event);
                if (key !== null) made.say(`${tell(key)} – ${result} ${show(row(key).last[result])}`);
                return;
            }
            if (Math.abs((drag.by_name ? px : py) - drag.from) < 4 && !dragged) return;
            dragged = true;
            made.svg.querySelectorAll(".drag").forEach(n => n.remove());
            if (drag.by_name) made.svg.append(el("path", { class: "drag hops", d: `M${px} ${TOP - 20}V${bottom}` }));
            else {
                const [y1, y2] = [drag.from, py].map(y => Math.min(bottom, Math.max(TOP, y)));
                made.svg.append(
                    el("rect", {
                        class: "drag brush",
                        x: xs[drag.i] - 7,
                        width: 14,
                        y: Math.min(y1, y2),
                        height: Math.abs(y2 - y1),
                    }),
                );
                made.say(told(axes[drag.i], between(axes[drag.i], bottom, TOP, drag.from, py)));
            }
        });
        made.svg.addEventListener("pointerup", event => {
            if (!drag) return;
            const { i, by_name, from } = drag,
                [px, py] = at(made.svg, event);
            drag = null;
            if (by_name && dragged) {
                reorder(current(), i, xs.filter((x, k) => k !== i && x < px).length);
                made.redraw();
            } else if (!by_name && dragged) report.hooks.limit(axes[i].name, between(axes[i], bottom, TOP, from, py));
            else if (!by_name && limits(axes[i].name)) {
                dragged = true;
                report.hooks.limit(axes[i].name, null);
            }
            if (dragged) made.redraw();
        });
        made.svg.addEventListener("pointercancel", () => {
            drag = null;
            made.redraw();
        });
        function nearest(event) {
            const [px, py] = at(made.svg, event);
            let best = null;
            for (const [key, own] of lines)
                for (let i = 1; i < own.length; i++) {
                    const [ax, ay] = own[i - 1],
                        [bx, by] = own[i];
                    if (px < ax || px > bx || ay === null || by === null) continue;
                    const distance = Math.abs(ay + ((by - ay) * (px - ax)) / (bx - ax || 1) - py);
                    if (!best || distance < best[0]) best = [distance, key];
                }
            return best && best[0] < 15 ? best[1] : null;
        }
        made.svg.addEventListener("click", event => {
            const key = dragged ? null : nearest(event);
            if (key !== null) mark(key);
        });
        made.holder.prepend(
            el(
                "p",
                { class: "hint" },
                "Drag an axis by its name; with the keyboard: arrow keys to the sides choose an axis, with Shift they move it." +
                    (report.hooks
                        ? " Drag along an axis to filter, click it to show all; with the keyboard: up and down set the least value, with Shift the greatest, Delete shows all."
                        : ""),
            ),
        );
    }
    add("parallel", draw, data => {
        see(data);
        most = Math.max(most, data.configurations.filter(c => isNumber(c.last[data.measure.series])).length);
        return most < 2;
    });
})();
