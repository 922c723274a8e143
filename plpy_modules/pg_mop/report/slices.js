"use strict";
// Slices: for each parameter, its values against the result, with a dot for each configuration. The parameters that explain more
// of the differences come first (spread.py). On the live page a part of an axis sets the filter. page.js has the tools. Users'
// text becomes text, never markup.
(function () {
    const report = window.pgMopReport,
        { picture, nothing, at, scale, ticks, el, show, mark, marked, tell } = report;
    const { see, axis, place, between, told, span, value, has, cut, isNumber } = window.pgMopAxes;
    const MOST = 9,
        HIGH = 190;
    let most = 0;

    // the varied parameters, those first that explain more
    function sorted(data) {
        const parts = data.spread?.parts || {};
        return [...data.varied].sort((a, b) => (parts[b] || 0) - (parts[a] || 0));
    }
    function take(data) {
        see(data);
        const series = data.measure.series,
            rows = data.configurations.filter(c => isNumber(c.last[series]) && c.status !== "failed");
        most = Math.max(most, rows.length);
        return {
            rows,
            series,
            spread: data.spread,
            slices: sorted(data).slice(0, MOST),
            others: data.others || [],
            varied: data.varied,
        };
    }
    function draw(current) {
        let { rows, series, spread, slices, others, varied } = take(current());
        if (most < 3 || !slices.length)
            return nothing("slices", "It takes three configurations with a result, and a parameter that varies.");
        const note = el("p", { class: "note" });
        let dots = [],
            panels = [],
            here = -1,
            drag = null,
            dragged = false;
        const label = () =>
            `Each parameter against ${series}, of ${rows.length + others.length} configurations: ${slices.join(", ")}.`;
        const said = dot => `${tell(dot.key)} – ${series} ${show(dot.value)} after ${dot.iterations} iterations`;
        const limits = name => report.hooks?.limits(name) || null;
        const made = picture(
            "slices",
            label,
            (svg, width) => {
                ({ rows, series, spread, slices, others, varied } = take(current()));
                dots = [];
                panels = [];
                note.textContent =
                    `a dot for each ${others.length ? `of the best ${rows.length} configurations, a small mark for each other one` : "configuration"}; the stronger a dot, the more iterations it has.` +
                    (spread?.parts
                        ? ` What a parameter explains is of the ${spread.of} configurations with ${spread.iterations} iterations or more.`
                        : "") +
                    (report.hooks
                        ? " Drag over a part of an axis to filter, click beside the dots to show all; with the keyboard: arrow keys move, [ and ] set the least and the greatest value, Delete shows all."
                        : "");
                const across = Math.max(1, Math.min(slices.length, Math.floor(width / 240))),
                    wide = width / across;
                const ys = [...rows.map(c => c.last[series]), ...others.map(o => o[0])],
                    low = Math.min(...ys),
                    top = Math.max(...ys);
                const longest = Math.max(...rows.map(c => c.iterations || 0)) || 1;
                slices.forEach((name, at_) => {
                    const left = (at_ % across) * wide + 48,
                        begin = Math.floor(at_ / across) * HIGH,
                        right = left + wide - 66,
                        bottom = begin + HIGH - 36;
                    const own = rows.filter(c => has(value(c, name))),
                        a = axis(name),
                        where = place(a, left, right);
                    panels.push({ a, left, right, top: begin + 24, bottom });
                    const y = scale(low, top, bottom, begin + 26),
                        part = spread?.parts?.[name];
                    const spreadOf = key =>
                        a.words ? (((((key * 37) % 17) / 17 - 0.5) * 0.5) / a.words.length) * (right - left) : 0; // dots of one word, side by side
                    if (a.words)
                        a.words.forEach((_, k) =>
                            svg.append(
                                el("rect", {
                                    class: "band",
                                    x: (left + ((k + 0.08) / a.words.length) * (right - left)).toFixed(1),
                                    width: (((right - left) / a.words.length) * 0.84).toFixed(1),
                                    y: begin + 24,
                                    height: HIGH - 60,
                                }),
                            ),
                        );
                    svg.append(
                        el(
                            "text",
                            { x: left, y: begin + 14, style: "fill:var(--ink);font-weight:600" },
                            cut(name, 22),
                            el("title", {}, name),
                        ),
                    );
                    if (isNumber(part))
                        svg.append(
                            el(
                                "text",
                                { x: right, y: begin + 14, "text-anchor": "end" },
                                `explains ${Math.round(100 * part)} %`,
                            ),
                        );
                    svg.append(el("path", { class: "axis", d: `M${left} ${begin + 24}V${bottom}H${right}` }));
                    const now = span(a, left, right, limits(name));
                    if (now)
                        svg.append(
                            el("rect", {
                                class: "brush",
                                x: now[0] - 3,
                                width: now[1] - now[0] + 6,
                                y: begin + 24,
                                height: HIGH - 60,
                            }),
                        );
                    if (rows.length)
                        for (const tick of ticks(low, top, 3))
                            svg.append(el("text", { x: left - 5, y: y(tick) + 4, "text-anchor": "end" }, show(tick)));
                    if (a.words) {
                        const room = Math.max(4, Math.floor((right - left) / a.words.length / 6.5));
                        a.words
                            .slice(0, 12)
                            .forEach(word =>
                                svg.append(
                                    el(
                                        "text",
                                        { x: where(word), y: bottom + 14, "text-anchor": "middle" },
                                        cut(show(word), room),
                                        el("title", {}, word),
                                    ),
                                ),
                            );
                    } else
                        for (const tick of a.low === a.high ? [a.low] : ticks(a.low, a.high, 3, a.log))
                            svg.append(
                                el("text", { x: where(tick), y: bottom + 14, "text-anchor": "middle" }, show(tick)),
                            );
                    if (a.log)
                        svg.append(el("text", { x: right, y: bottom + 27, "text-anchor": "end" }, "logarithmic"));
                    // (one path for all of them: thousands of marks are drawn as quickly as one)
                    const nth = varied.indexOf(name) + 1,
                        marks = others
                            .filter(o => has(o[nth]))
                            .map(
                                (o, k) =>
                                    `M${(where(o[nth]) + spreadOf(k) - 1).toFixed(1)} ${(y(o[0]) - 1).toFixed(1)}h2v2h-2z`,
                            );
                    if (marks.length) svg.append(el("path", { class: "others", d: marks.join("") }));
                    for (const c of own) {
                        const dot = {
                            key: c.mst_key,
                            name,
                            x: where(value(c, name)) + spreadOf(c.mst_key),
                            y: y(c.last[series]),
                            value: c.last[series],
                            iterations: c.iterations,
                        };
                        dots.push(dot);
                        const mine = c.mst_key === marked();
                        svg.append(
                            el("circle", {
                                class: mine ? "marked" : "",
                                cx: dot.x.toFixed(1),
                                cy: dot.y.toFixed(1),
                                r: mine ? 6 : 3.2,
                                fill: mine ? "var(--mark)" : "var(--train)",
                                "fill-opacity": (0.25 + (0.6 * (c.iterations || 0)) / longest).toFixed(2),
                            }),
                        );
                    }
                });
                return Math.ceil(slices.length / across) * HIGH;
            },
            (key, say) => {
                const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[key];
                if (key === "Enter" && dots[here]) {
                    mark(dots[here].key);
                    return true;
                }
                if (step && dots.length) {
                    here = Math.min(dots.length - 1, Math.max(0, here + step));
                    show_(dots[here], say);
                    return true;
                }
                // "[" and "]": from, and up to, the value of this dot
                if (!report.hooks || !dots[here] || !["[", "]", "Delete", "Backspace"].includes(key)) return false;
                const { name, key: own } = dots[here],
                    a = axis(name),
                    v = value(report.row(own), name),
                    before = limits(name);
                const given =
                    key.length > 1
                        ? null
                        : !a.numeric
                          ? { words: [String(v)] }
                          : key === "["
                            ? { low: v, high: Math.max(v, before?.high ?? a.values[a.values.length - 1]) }
                            : { low: Math.min(v, before?.low ?? a.values[0]), high: v };
                report.hooks.limit(name, given);
                made.redraw();
                say(told(a, given));
                return true;
            },
        );
        function show_(dot, say) {
            made.ring(dot.x, dot.y, 7);
            say(said(dot));
        }
        made.readable(
            () => (drag ? [] : dots.map(dot => [dot.x, dot.y, dot])),
            20,
            dot => show_(dot, made.say),
            dot => dragged || mark(dot.key),
        );
        made.svg.addEventListener("pointerdown", event => {
            const [px, py] = at(made.svg, event),
                panel = panels.find(p => px >= p.left - 4 && px <= p.right + 4 && py >= p.top && py <= p.bottom + 16);
            dragged = false;
            if (!panel || !report.hooks) return;
            drag = { panel, from: px };
            made.svg.setPointerCapture(event.pointerId);
        });
        made.svg.addEventListener("pointermove", event => {
            const [px] = at(made.svg, event);
            if (!drag) return;
            const { a, left, right, top, bottom } = drag.panel;
            if (Math.abs(px - drag.from) < 5 && !dragged) return;
            dragged = true;
            made.svg.querySelectorAll(".drag").forEach(n => n.remove());
            const [x1, x2] = [drag.from, px].map(x => Math.min(right, Math.max(left, x)));
            made.svg.append(
                el("rect", {
                    class: "drag brush",
                    x: Math.min(x1, x2),
                    width: Math.abs(x2 - x1),
                    y: top,
                    height: bottom - top,
                }),
            );
            made.say(told(a, between(a, left, right, drag.from, px)));
        });
        made.svg.addEventListener("pointerup", event => {
            if (!drag) return;
            const {
                    panel: { a, left, right },
                    from,
                } = drag,
                [px] = at(made.svg, event);
            drag = null;
            if (dragged) report.hooks.limit(a.name, between(a, left, right, from, px));
            else if (!nearest(event) && limits(a.name)) report.hooks.limit(a.name, null);
            made.redraw();
        });
        made.svg.addEventListener("pointercancel", () => {
            drag = null;
            made.redraw();
        });
        made.holder.prepend(note);
    }
    report.add("slices", draw, data => !take(data).slices.length || most < 3);
})();
