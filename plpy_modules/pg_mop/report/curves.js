"use strict";
// Learning curves: by iteration or by the time since the run began, smoothed, of one data set or of both. page.js has the tools.
// Users' text becomes text, never markup.
(function () {
    const report = window.pgMopReport,
        {
            picture,
            nothing,
            scale,
            ticks,
            el,
            show,
            seconds,
            mark,
            marked,
            tell,
            line,
            ordered,
            endLabels,
            legend,
            colour,
            row,
        } = report;
    const ACROSS = {
        iteration: "iteration",
        logarithmic: "iteration, logarithmic",
        seconds: "time since the run began",
    };
    const chosen = { series: null, log: false, across: "iteration", smooth: 0, both: false };
    let data;

    // the same metric of the other rows
    function sister(series) {
        const [set, ...name] = series.split(" "),
            other = (set === "training" ? ["validation", "held-out"] : ["training"]).map(s => `${s} ${name.join(" ")}`);
        return other.find(s => data.series.includes(s)) || null;
    }
    // Exponential smoothing whose first values are not pulled to 0 (D. P. Kingma, J. Ba, Adam, 2015, section 3): [[iteration, value], ...]
    function smoothed(points) {
        if (!chosen.smooth) return points;
        let sum = 0,
            weight = 0;
        return points.map(([i, v]) => {
            sum = chosen.smooth * sum + (1 - chosen.smooth) * v;
            weight = chosen.smooth * weight + (1 - chosen.smooth);
            return [i, sum / weight];
        });
    }
    // the seconds at which an iteration was evaluated; null where they are not known
    function when(key, i) {
        const own = data.times?.[key];
        if (!own?.length) return null;
        const after = own.find(t => t[0] >= i);
        if (!after || after[0] === i) return after ? after[1] : null;
        const before = own.findLast(t => t[0] < i);
        return before ? before[1] + ((after[1] - before[1]) * (i - before[0])) / (after[0] - before[0]) : after[1];
    }
    function draw(current) {
        data = current();
        if (!data.series.length) return nothing("curves", data.pending ? report.READS : "There is no evaluation yet.");
        chosen.series = data.series.includes(chosen.series) ? chosen.series : data.series[0];
        if (!data.times) chosen.across = chosen.across === "seconds" ? "iteration" : chosen.across;
        let where = null,
            x,
            y;
        const choose = el("select", { id: "series" }, ...data.series.map(name => el("option", { value: name }, name)));
        choose.value = chosen.series;
        const logarithmic = el("input", { type: "checkbox", id: "log" });
        logarithmic.checked = chosen.log;
        const across = el(
            "select",
            { id: "across" },
            ...Object.entries(ACROSS)
                .filter(([name]) => name !== "seconds" || data.times)
                .map(([name, text]) => el("option", { value: name }, text)),
        );
        across.value = chosen.across;
        const smooth = el("input", { type: "range", id: "smooth", min: "0", max: "0.95", step: "0.05" });
        smooth.value = chosen.smooth;
        const both = el("input", { type: "checkbox", id: "both" });
        both.checked = chosen.both;
        const controls = el(
            "div",
            { class: "controls" },
            el("label", { for: "series" }, "Curves of "),
            choose,
            el("label", { class: "box" }, logarithmic, "logarithmic"),
            el("label", { for: "across" }, "by "),
            across,
            el("label", { class: "box" }, "smoothing ", smooth),
            el("label", { class: "box" }, both, "training and validation"),
        );
        const shown = () =>
            Object.keys(data.curves)
                .map(Number)
                .filter(key => data.curves[key][chosen.series]);
        const raw = (key, series) =>
            (data.curves[key]?.[series] || []).filter(
                p =>
                    p[1] !== null &&
                    (!chosen.log || p[1] > 0) &&
                    (chosen.across !== "logarithmic" || p[0] > 0) &&
                    (chosen.across !== "seconds" || when(key, p[0]) !== null),
            );
        const points = key => smoothed(raw(key, chosen.series));
        const other = () => (chosen.both ? sister(chosen.series) : null);
        const along = (key, i) => (chosen.across === "seconds" ? when(key, i) : i);
        const X = (key, i) => x(along(key, i));
        function say(key, point) {
            const twin = other() && data.curves[key][other()]?.find(p => p[0] === point[0]),
                own = data.curves[key][chosen.series].find(p => p[0] === point[0]);
            return (
                `${tell(key)} – iteration ${point[0]}` +
                (chosen.across === "seconds" ? `, after ${seconds(when(key, point[0]))}` : "") +
                `: ${chosen.series} ${show(own[1])}` +
                (chosen.smooth ? `, smoothed ${show(point[1])}` : "") +
                (twin ? `; ${other()} ${show(twin[1])}` : "")
            );
        }
        const path = (key, own) =>
            own.map((p, i) => (i ? "L" : "M") + X(key, p[0]).toFixed(1) + " " + y(p[1]).toFixed(1)).join("");
        const made = picture(
            "curves",
            () =>
                `Learning curves of ${shown().length} configurations by ${ACROSS[chosen.across]}${other() ? `, ${chosen.series} and ${other()}` : ""}.`,
            (svg, width) => {
                data = current();
                both.disabled = !sister(chosen.series);
                const height = Math.min(420, Math.max(260, width * 0.45)),
                    left = 56,
                    right = width - 40,
                    bottom = height - 34,
                    ends = [];
                const coloured = shown().filter(key => colour(key) || key === marked()),
                    twins = other() ? coloured.map(key => [key, smoothed(raw(key, other()))]) : [];
                const lines = shown()
                        .map(key => [key, points(key)])
                        .filter(([, own]) => own.length),
                    all = [...lines, ...twins].flatMap(([key, own]) => own.map(p => [along(key, p[0]), p[1]]));
                if (!all.length) {
                    svg.append(el("text", { x: 20, y: 30 }, "nothing to show"));
                    return 60;
                }
                const ys = all.map(p => p[1]),
                    xs = all.map(p => p[0]),
                    time = chosen.across === "seconds";
                const low = Math.min(...ys),
                    high = Math.max(...ys),
                    first = Math.min(...xs),
                    last = Math.max(...xs);
                x = scale(first, last, left, right, chosen.across === "logarithmic");
                y = scale(low, high, bottom, 12, chosen.log);
                for (const tick of ticks(low, high, 5, chosen.log))
                    svg.append(
                        el("path", { class: "axis", d: `M${left} ${y(tick)}H${right}` }),
                        el("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, show(tick)),
                    );
                const { step, made: times } = time ? report.timeTicks(first, last, Math.min(8, width / 90)) : {};
                for (const tick of times ||
                    ticks(first, last, Math.min(10, width / 60), chosen.across === "logarithmic").filter(
                        Number.isInteger,
                    ))
                    svg.append(
                        el(
                            "text",
                            { x: x(tick), y: bottom + 16, "text-anchor": "middle" },
                            time ? report.time(tick, step) : show(tick),
                        ),
                    );
                svg.append(
                    el(
                        "text",
                        { x: right, y: height - 4, "text-anchor": "end" },
                        (other() ? `dotted: ${other()} · ` : "") + ACROSS[chosen.across],
                    ),
                );
                const of = new Map(lines);
                for (const key of ordered(lines.map(([key]) => key))) {
                    const own = of.get(key);
                    svg.append(
                        ...(own.length > 1
                            ? line(key, path(key, own))
                            : [
                                  el("circle", {
                                      cx: X(key, own[0][0]),
                                      cy: y(own[0][1]),
                                      r: key === marked() ? 5 : 3,
                                      fill: key === marked() ? "var(--mark)" : colour(key) || "var(--grey)",
                                  }),
                              ]),
                    );
                    // (what is smoothed shows what it was)
                    if (chosen.smooth && own.length > 1 && (colour(key) || key === marked()))
                        svg.append(
                            el("path", {
                                class: "raw",
                                style: `stroke:${key === marked() ? "var(--mark)" : colour(key)}`,
                                d: path(key, raw(key, chosen.series)),
                            }),
                        );
                    if (colour(key) || key === marked())
                        ends.push([X(key, own[own.length - 1][0]) + 5, y(own[own.length - 1][1]), key]);
                }
                for (const [key, own] of twins)
                    if (own.length)
                        svg.append(
                            el("path", {
                                class: "twin",
                                style: `stroke:${key === marked() ? "var(--mark)" : colour(key)}`,
                                d: path(key, own) + (own.length > 1 ? "" : "h.01"),
                            }),
                        );
                endLabels(svg, ends, 16, bottom);
                return height;
            },
            (key, say_) => {
                const keys = shown()
                    .filter(k => points(k).length)
                    .sort((a, b) => (row(a)?.rank ?? 1e9) - (row(b)?.rank ?? 1e9));
                if (!keys.length || !key.startsWith("Arrow"))
                    return key === "Enter" && where && keys[where[0]] !== undefined
                        ? (mark(keys[where[0]]), true)
                        : false;
                where = where || [0, 0];
                where[0] = Math.min(
                    keys.length - 1,
                    Math.max(0, where[0] + (key === "ArrowDown") - (key === "ArrowUp")),
                );
                const own = points(keys[where[0]]);
                where[1] = Math.min(
                    own.length - 1,
                    Math.max(0, where[1] + (key === "ArrowRight") - (key === "ArrowLeft")),
                );
                say_(say(keys[where[0]], own[where[1]]));
                focus(keys[where[0]], own[where[1]]);
                return true;
            },
        );
        function focus(key, point) {
            made.ring(X(key, point[0]), y(point[1]));
        }
        made.readable(
            () => shown().flatMap(key => points(key).map(point => [X(key, point[0]), y(point[1]), [key, point]])),
            40,
            ([key, point]) => {
                made.say(say(key, point));
                focus(key, point);
            },
            ([key]) => mark(key),
        );
        for (const [control, event, set] of [
            [choose, "change", () => (chosen.series = choose.value)],
            [logarithmic, "change", () => (chosen.log = logarithmic.checked)],
            [across, "change", () => (chosen.across = across.value)],
            [smooth, "input", () => (chosen.smooth = +smooth.value)],
            [both, "change", () => (chosen.both = both.checked)],
        ])
            control.addEventListener(event, () => {
                set();
                where = null;
                made.redraw();
            });
        legend("curves", made.holder);
        made.holder.prepend(controls);
    }
    report.add("curves", draw, data =>
        JSON.stringify([data.series, !data.series.length && !!data.pending, !data.times]),
    );
})();
