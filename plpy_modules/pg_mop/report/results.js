"use strict";
// Results of all configurations together: how they are distributed, and which configurations no other one beats in two measures
// (the Pareto front). page.js has the tools. Users' text becomes text, never markup.
(function () {
    const report = window.pgMopReport,
        { picture, nothing, at, scale, ticks, el, show, mark, marked, tell, row } = report;
    const { TIME, value, isNumber } = window.pgMopAxes;

    function frame(svg, left, right, top, bottom, xs, ys) {
        svg.append(el("path", { class: "axis", style: "stroke:var(--soft)", d: `M${left} ${top}V${bottom}H${right}` }));
        for (const [text, x] of xs) svg.append(el("text", { x, y: bottom + 15, "text-anchor": "middle" }, text));
        for (const [text, y] of ys)
            svg.append(
                el("path", { class: "axis", d: `M${left} ${y}H${right}` }),
                el("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, text),
            );
    }
    function titles(svg, left, right, bottom, across, up) {
        svg.append(
            el("text", { x: right, y: bottom + 31, "text-anchor": "end", style: "fill:var(--ink)" }, across),
            el("text", { x: left, y: 11, style: "fill:var(--ink)" }, up),
        );
    }

    // --- how results are distributed: the empirical distribution function ----------------------------------
    // of values, the best first: the part of them that is as good or better
    function edf(current) {
        // of one run, all its configurations; of several runs, each one's
        const several = () =>
            current()
                .distributions?.map(([, values]) => values)
                .filter(v => v.length) || null;
        const whole = () =>
            several()
                ? several()
                      .flat()
                      .sort((a, b) => (current().measure.goal === "max" ? b - a : a - b))
                : current().spread?.values || [];
        const has = () => whole().length;
        if (has() < 2) return nothing("edf", "It takes two configurations with a result.");
        let x,
            y,
            here = -1;
        const note = el("p", { class: "note" });
        const lines = () =>
            (
                current().distributions || [
                    ["all", current().spread.values],
                    ...(current().shown_values ? [["those of the filter", current().shown_values]] : []),
                ]
            ).filter(([, v]) => v.length);
        const DASHES = ["", "6 4", "2 3", "10 3 2 3", "1 5", "14 4"];
        const series = () => current().measure.series,
            better = () => (current().measure.goal === "max" ? "or more" : "or less");
        const made = picture(
            "edf",
            () =>
                `Distribution of ${series()}: from ${show(whole()[0])}, the best, to ${show(whole()[has() - 1])}; the median is ${
                    several()
                        ? lines()
                              .map(([name, own]) => `${show(own[Math.floor((own.length - 1) / 2)])} of ${name}`)
                              .join(", ")
                        : show(whole()[Math.floor((has() - 1) / 2)])
                }.`,
            (svg, width) => {
                note.textContent = several()
                    ? "of each run, the configurations with the most iterations of which there are eight"
                    : `of the ${current().spread.of} configurations with ${current().spread.iterations} iterations or more`;
                const left = 56,
                    right = width - 16,
                    top = 20,
                    bottom = 240,
                    all = lines().flatMap(([, v]) => v);
                const low = Math.min(...all),
                    high = Math.max(...all);
                x = scale(low, high, left, right);
                y = scale(0, 1, bottom, top);
                frame(
                    svg,
                    left,
                    right,
                    top,
                    bottom,
                    ticks(low, high, Math.min(8, width / 80)).map(t => [show(t), x(t)]),
                    [0, 0.25, 0.5, 0.75, 1].map(t => [`${100 * t} %`, y(t)]),
                );
                lines().forEach(([name, values], k) => {
                    // from nothing at the best value to all of them at the worst, by steps
                    const d = values
                        .map(
                            (v, i) =>
                                (i ? "H" : `M${x(v).toFixed(1)} ${y(0)}V${y(1 / values.length).toFixed(1)}H`) +
                                x(v).toFixed(1) +
                                "V" +
                                y((i + 1) / values.length).toFixed(1),
                        )
                        .join("");
                    svg.append(
                        el("path", {
                            class: "curve top",
                            style: `stroke:var(--c${k % 4});stroke-dasharray:${DASHES[k] || "none"}`,
                            d,
                        }),
                    );
                    const max = current().measure.goal === "max"; // (the upper corner without a line)
                    if (lines().length > 1)
                        svg.append(
                            el(
                                "text",
                                {
                                    x: max ? right - 42 : left + 42,
                                    y: top + 16 + 15 * k,
                                    "text-anchor": max ? "end" : "start",
                                    style: "fill:var(--ink)",
                                },
                                name,
                            ),
                            el("path", {
                                class: "curve top key",
                                style: `stroke:var(--c${k % 4});stroke-dasharray:${DASHES[k] || "none"}`,
                                d: `M${max ? right - 36 : left + 8} ${top + 12 + 15 * k}h28`,
                            }),
                        );
                });
                const own = row(marked());
                if (own && isNumber(own.last[series()]))
                    svg.append(
                        el("path", {
                            class: "marked",
                            style: "stroke-dasharray:3 3",
                            d: `M${x(own.last[series()])} ${top}V${bottom}`,
                        }),
                    );
                titles(svg, left, right, bottom, series(), "part of the configurations that is as good or better");
                return bottom + 38;
            },
            (key, say) => {
                const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[key];
                if (!step || !has()) return false;
                here = Math.min(points().length - 1, Math.max(0, here + step));
                point(points()[here], say);
                return true;
            },
        );
        // [name of its run, or none; value; the part of the configurations that is as good or better]
        function points() {
            return lines()
                .slice(0, several() ? undefined : 1)
                .flatMap(([name, values]) => values.map((v, i) => [several() ? name : "", v, (i + 1) / values.length]));
        }
        function point([name, v, part], say) {
            made.ring(x(v), y(part));
            say(`${name ? name + ": " : ""}${Math.round(100 * part)} % have ${series()} ${show(v)} ${better()}`);
        }
        made.svg.addEventListener("pointermove", event => {
            const [px, py] = at(made.svg, event),
                away = p => Math.abs(x(p[1]) - px) + (several() ? Math.abs(y(p[2]) - py) : 0);
            if (has())
                point(
                    points().reduce((best, p) => (away(p) < away(best) ? p : best)),
                    made.say,
                );
        });
        made.holder.prepend(note);
    }

    // --- the Pareto front ----------------------------------------------------------------------------------
    let against = null;
    // what can be compared with the measure: other metrics of the same rows whose better direction is known, and the time
    function others(data) {
        const [set] = data.measure.series.split(" "),
            goals = data.spread?.goals || {};
        const known = Object.keys(goals).filter(name => name !== data.measure.series);
        return [...known.filter(n => n.startsWith(set + " ")), TIME, ...known.filter(n => !n.startsWith(set + " "))];
    }
    function goalOf(data, name) {
        return name === TIME ? "min" : name === data.measure.series ? data.measure.goal : data.spread.goals[name];
    }
    // the configurations that no other one beats: as good in both and better in one
    function front(points) {
        const sorted = [...points].sort((a, b) => a.u - b.u || a.v - b.v),
            made = [];
        let best = Infinity,
            at_ = null;
        for (const p of sorted) {
            if (p.v < best || (p.v === best && p.u === at_)) {
                made.push(p);
                at_ = p.u;
            }
            best = Math.min(best, p.v);
        }
        return made;
    }
    function take(data) {
        const names = others(data),
            other = names.includes(against) ? against : names[0],
            series = data.measure.series;
        const sign = name => (goalOf(data, name) === "max" ? -1 : 1);
        const points = data.configurations
            .filter(c => c.status !== "failed" && isNumber(c.last[series]) && isNumber(value(c, other)))
            .map(c => ({
                key: c.mst_key,
                x: value(c, other),
                y: c.last[series],
                u: sign(other) * value(c, other),
                v: sign(series) * c.last[series],
            }));
        return { names, other, series, points, best: front(points) };
    }
    function pareto(current) {
        let taken = take(current());
        if (!current().spread || taken.points.length < 2)
            return nothing("pareto", "It takes two configurations with a result.");
        let x,
            y,
            here = -1;
        const choose = el(
            "select",
            { id: "pareto-x" },
            ...taken.names.map(name => el("option", { value: name }, name)),
        );
        choose.value = taken.other;
        const words = name => `${name} (${goalOf(current(), name) === "max" ? "more" : "less"} is better)`;
        const made = picture(
            "pareto",
            () =>
                `${taken.series} and ${taken.other} of ${taken.points.length} configurations; no other one beats ${taken.best.length} of them.`,
            (svg, width) => {
                taken = take(current());
                const left = 60,
                    right = width - 30,
                    top = 20,
                    bottom = 280,
                    { points, best } = taken;
                if (!points.length) {
                    svg.append(el("text", { x: 20, y: 30 }, "nothing to show"));
                    return 60;
                }
                const xs = points.map(p => p.x),
                    ys = points.map(p => p.y),
                    [x1, x2, y1, y2] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)],
                    log = x1 > 0 && x2 / x1 >= 50;
                x = scale(x1, x2, left, right, log);
                y = scale(y1, y2, bottom - 6, top + 6);
                frame(
                    svg,
                    left,
                    right,
                    top,
                    bottom,
                    ticks(x1, x2, Math.min(8, width / 90), log).map(t => [show(t), x(t)]),
                    ticks(y1, y2, 5).map(t => [show(t), y(t)]),
                );
                svg.append(
                    el("path", {
                        class: "curve top",
                        style: "stroke:var(--c1)",
                        d: best
                            .map((p, i) =>
                                i
                                    ? `H${x(p.x).toFixed(1)}V${y(p.y).toFixed(1)}`
                                    : `M${x(p.x).toFixed(1)} ${y(p.y).toFixed(1)}`,
                            )
                            .join(""),
                    }),
                );
                const of = new Set(best.map(p => p.key));
                for (const p of points) {
                    const mine = p.key === marked();
                    svg.append(
                        el("circle", {
                            class: mine ? "marked" : of.has(p.key) ? "front" : "",
                            cx: x(p.x).toFixed(1),
                            cy: y(p.y).toFixed(1),
                            r: mine ? 6 : of.has(p.key) ? 5 : 3,
                            fill: mine ? "var(--mark)" : of.has(p.key) ? "var(--c1)" : "var(--train)",
                            "fill-opacity": of.has(p.key) || mine ? 1 : 0.5,
                        }),
                    );
                }
                titles(
                    svg,
                    left,
                    right,
                    bottom,
                    words(taken.other) + (log ? ", logarithmic" : ""),
                    words(taken.series),
                );
                return bottom + 38;
            },
            (key, say) => {
                const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[key];
                if (key === "Enter" && taken.best[here]) {
                    mark(taken.best[here].key);
                    return true;
                }
                if (!step || !taken.best.length) return false;
                here = Math.min(taken.best.length - 1, Math.max(0, here + step));
                point(taken.best[here], say);
                return true;
            },
        );
        function point(p, say) {
            made.ring(x(p.x), y(p.y), 8);
            say(
                `${tell(p.key)} – ${taken.series} ${show(p.y)}, ${taken.other} ${show(p.x)}` +
                    (taken.best.includes(p) ? ": no other one beats it" : ""),
            );
        }
        made.readable(
            () => taken.points.map(p => [x(p.x), y(p.y), p]),
            20,
            p => point(p, made.say),
            p => mark(p.key),
        );
        choose.addEventListener("change", () => {
            against = choose.value;
            here = -1;
            made.redraw();
        });
        made.holder.prepend(
            el("div", { class: "controls" }, el("label", { for: "pareto-x" }, `${taken.series} against `), choose),
            el("p", { class: "note" }, "on the line: configurations that no other one beats in both"),
        );
    }
    report.add("edf", edf, data =>
        data.distributions
            ? data.distributions.map(([name, values]) => name + (values.length > 0)).join()
            : !(data.spread?.values.length > 1),
    );
    report.add("pareto", pareto, data => !data.spread || [take(data).points.length < 2, others(data).join()].join());
})();
