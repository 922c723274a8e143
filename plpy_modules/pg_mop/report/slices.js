"use strict";
// Slices: for each parameter, its values against the result, with a dot for each configuration. The parameters that explain more
// of the differences come first. page.js has the tools. Users' text becomes text, never markup.
window.pgMopSlices = (function () {
    const { picture, nothing, at, scale, ticks, el, show, mark, marked, tell } = window.pgMopReport;
    const MOST = 9, BINS = 4, ENOUGH = 8;
    const isNumber = v => typeof v === "number";

    // The part of the differences in `ys` that groups of `xs` explain: omega squared of an analysis of variance, with numbers in
    // BINS groups of equal size (W. L. Hays, Statistics, 1963).
    function explained(xs, ys) {
        const order = xs.map((x, i) => [x, ys[i]]), groups = new Map();
        if (xs.every(isNumber) && new Set(xs).size > BINS) {
            order.sort((a, b) => a[0] - b[0]);
            order.forEach(([, y], i) => {
                const bin = Math.floor(i * BINS / order.length);
                groups.set(bin, [...groups.get(bin) || [], y]);
            });
        } else for (const [x, y] of order) groups.set(String(x), [...groups.get(String(x)) || [], y]);
        const n = ys.length, k = groups.size, mean = ys.reduce((a, b) => a + b, 0) / n;
        const whole = ys.reduce((sum, y) => sum + (y - mean) ** 2, 0);
        if (k < 2 || n <= k || !whole) return 0;
        let between = 0;
        for (const own of groups.values()) between += own.length * (own.reduce((a, b) => a + b, 0) / own.length - mean) ** 2;
        const within = (whole - between) / (n - k);
        return Math.max(0, (between - (k - 1) * within) / (whole + within));
    }
    // The configurations with the most iterations of which there are enough: results of fewer iterations are not comparable.
    function comparable(rows) {
        const rungs = [...new Set(rows.map(c => c.iterations))].sort((a, b) => b - a);
        for (const rung of rungs) {
            const own = rows.filter(c => c.iterations >= rung);
            if (own.length >= ENOUGH) return own;
        }
        return rows;
    }
    function take(data) {
        const series = data.measure.series;
        const rows = data.configurations.filter(c => isNumber(c.last[series]) && c.status !== "failed");
        const fair = comparable(rows);
        const slices = data.varied.map(name => {
            const own = fair.filter(c => c.parameters[name] !== undefined && c.parameters[name] !== null);
            return { name, part: explained(own.map(c => c.parameters[name]), own.map(c => c.last[series])) };
        });
        slices.sort((a, b) => b.part - a.part);
        return { rows, fair, series, slices: slices.slice(0, MOST) };
    }
    function axis(values) {
        const numeric = values.every(isNumber);
        if (!numeric || new Set(values).size <= 3)
            return { words: [...new Set(values)].sort((a, b) => a - b || String(a).localeCompare(String(b))).map(String) };
        const low = Math.min(...values), high = Math.max(...values);
        return { low, high, log: low > 0 && high / low >= 50 };
    }
    function draw(current) {
        let { rows, fair, series, slices } = take(current());
        if (rows.length < 3 || !slices.length) return nothing("slices", "It takes three configurations with a result, and a parameter that varies.");
        let dots = [], here = -1;
        const label = () => `Each parameter against ${series}, of ${rows.length} configurations: ${slices.map(s => s.name).join(", ")}.`;
        const said = dot => `${tell(dot.key)} – ${series} ${show(dot.value)} after ${dot.iterations} iterations`;
        const made = picture("slices", label, (svg, width) => {
            ({ rows, fair, series, slices } = take(current()));
            dots = [];
            if (!rows.length) { svg.append(el("text", { x: 20, y: 30 }, "nothing to show")); return 60; }
            const across = Math.max(1, Math.min(slices.length, Math.floor(width / 240))), wide = width / across, high = 190;
            const ys = rows.map(c => c.last[series]), low = Math.min(...ys), top = Math.max(...ys);
            const most = Math.max(...rows.map(c => c.iterations || 0)) || 1;
            slices.forEach((slice, place) => {
                const left = place % across * wide + 48, begin = Math.floor(place / across) * high, right = left + wide - 66, bottom = begin + high - 36;
                const own = rows.filter(c => c.parameters[slice.name] !== undefined && c.parameters[slice.name] !== null);
                const a = axis(own.map(c => c.parameters[slice.name]));
                const y = scale(low, top, bottom, begin + 26);
                const spread = key => (key * 37 % 17 / 17 - .5) * .5;  // dots of one word, side by side
                const x = a.words ? (v, key) => left + (a.words.indexOf(String(v)) + .5 + spread(key)) / a.words.length * (right - left)
                    : a.low === a.high ? () => (left + right) / 2 : scale(a.low, a.high, left, right, a.log);
                svg.append(el("text", { x: left, y: begin + 14, style: "fill:var(--ink);font-weight:600" }, slice.name.length > 22 ? slice.name.slice(0, 21) + "…" : slice.name,
                              el("title", {}, slice.name), ));
                if (fair.length >= ENOUGH) svg.append(el("text", { x: right, y: begin + 14, "text-anchor": "end" }, `explains ${Math.round(100 * slice.part)} %`));
                svg.append(el("path", { class: "axis", d: `M${left} ${begin + 24}V${bottom}H${right}` }));
                for (const tick of ticks(low, top, 3)) svg.append(el("text", { x: left - 5, y: y(tick) + 4, "text-anchor": "end" }, show(tick)));
                if (a.words) {
                    const room = Math.max(4, Math.floor((right - left) / a.words.length / 6.5));
                    a.words.slice(0, 12).forEach((word, i) => svg.append(el("text", { x: left + (i + .5) / a.words.length * (right - left), y: bottom + 14, "text-anchor": "middle" },
                        show(word).length > room ? show(word).slice(0, room - 1) + "…" : word, el("title", {}, word))));
                } else for (const tick of a.low === a.high ? [a.low] : ticks(a.low, a.high, 3, a.log))
                    svg.append(el("text", { x: x(tick), y: bottom + 14, "text-anchor": "middle" }, show(tick)));
                if (a.log) svg.append(el("text", { x: right, y: bottom + 27, "text-anchor": "end" }, "logarithmic"));
                for (const c of own) {
                    const dot = { key: c.mst_key, x: x(c.parameters[slice.name], c.mst_key), y: y(c.last[series]), value: c.last[series], iterations: c.iterations, rank: c.rank };
                    dots.push(dot);
                    const mine = c.mst_key === marked();
                    svg.append(el("circle", { class: mine ? "marked" : "", cx: dot.x.toFixed(1), cy: dot.y.toFixed(1), r: mine ? 6 : 3.2,
                                              fill: mine ? "var(--mark)" : "var(--train)", "fill-opacity": (.25 + .6 * (c.iterations || 0) / most).toFixed(2) }));
                }
            });
            return Math.ceil(slices.length / across) * high;
        }, (key, say) => {
            const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[key];
            if (key === "Enter" && dots[here]) { mark(dots[here].key); return true; }
            if (!step || !dots.length) return false;
            here = Math.min(dots.length - 1, Math.max(0, here + step));
            show_(dots[here], say);
            return true;
        });
        function show_(dot, say) {
            made.svg.querySelectorAll(".here").forEach(n => n.remove());
            made.svg.append(el("circle", { class: "here", cx: dot.x, cy: dot.y, r: 7, fill: "none", stroke: "var(--ink)", "stroke-width": 2 }));
            say(said(dot));
        }
        function nearest(event) {
            const [px, py] = at(made.svg, event);
            let best = null;
            for (const dot of dots) {
                const distance = (dot.x - px) ** 2 + (dot.y - py) ** 2;
                if (!best || distance < best[0]) best = [distance, dot];
            }
            return best && best[0] < 400 ? best[1] : null;
        }
        made.svg.addEventListener("pointermove", event => { const dot = nearest(event); if (dot) show_(dot, made.say); });
        made.svg.addEventListener("click", event => { const dot = nearest(event); if (dot) mark(dot.key); });
        made.holder.prepend(el("p", { class: "note" }, "a dot for each configuration; the stronger, the more iterations it has. "
            + (fair.length >= ENOUGH ? `What a parameter explains is of the ${fair.length} configurations with the most iterations.` : "")));
    }
    window.pgMopReport.add("slices", draw, data => take(data).rows.length < 3 || !data.varied.length);
    return { explained, comparable };
})();
