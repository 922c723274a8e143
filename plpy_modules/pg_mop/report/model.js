"use strict";
// Draws the pictures of a named model's report from their descriptions (model_data.py): bars, curves with points, a matrix.
// page.js has the tools. Users' text becomes text, never markup.
window.pgMopModel = (function () {
    const { renew, picture, nothing, scale, ticks, el, show } = window.pgMopReport;
    const colour = (spec, series, place) =>
        `var(--${spec.colours ? spec.colours[place] : spec[series].length === 1 ? "train" : "c" + (place % 8)})`;

    function cut(text, room) {
        return text.length > room ? text.slice(0, Math.max(3, room - 1)) + "…" : text;
    }
    function legend(holder, names, colours) {
        if (names.length < 2) return;
        holder.prepend(
            el(
                "div",
                { class: "controls legend" },
                ...names.map((name, i) =>
                    el("span", {}, el("i", { style: `background:${colours[i]};height:.7rem` }), name),
                ),
            ),
        );
    }
    // A picture with places that are read out, by the pointer or by arrow keys: draw(svg, width, places) fills
    // [x, y, text] and returns the height.
    function readable(name, label, draw, far = 30) {
        let places = [],
            here = -1;
        function tell(i) {
            here = i;
            made.ring(places[i][0], places[i][1]);
            made.say(places[i][2]);
        }
        const made = picture(
            name,
            () => label,
            (svg, width) => {
                places = [];
                here = -1;
                return draw(svg, width, places);
            },
            key => {
                const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[key];
                if (!step || !places.length) return false;
                tell(Math.min(places.length - 1, Math.max(0, here + step)));
                return true;
            },
        );
        made.readable(() => places.map(([x, y], i) => [x, y, i]), far, tell);
        return made;
    }

    function bars(name, spec) {
        const values = spec.series
            .flatMap(s => s.values.map((v, i) => [v - (s.spread ? s.spread[i] : 0), v + (s.spread ? s.spread[i] : 0)]))
            .flat();
        if (!values.length) return nothing(name, "There is nothing to show.");
        const low = spec.low ?? Math.min(0, ...values),
            high = spec.high ?? Math.max(0, ...values);
        const made = readable(name, spec.label, (svg, width, places) => {
            const left = Math.min(190, width * 0.36),
                right = width - 50,
                thick = spec.series.length > 1 ? 8 : 14;
            const row = thick * spec.series.length + 8,
                bottom = 8 + row * spec.names.length,
                x = scale(low, high || 1, left, right);
            for (const tick of ticks(low, high || 1, Math.min(6, width / 90)))
                svg.append(
                    el("path", { class: "axis", d: `M${x(tick)} 4V${bottom}` }),
                    el("text", { x: x(tick), y: bottom + 14, "text-anchor": "middle" }, show(tick)),
                );
            spec.names.forEach((own, i) => {
                const top = 8 + row * i;
                svg.append(
                    el(
                        "text",
                        { x: left - 6, y: top + (row - 8) / 2 + 4, "text-anchor": "end", style: "fill:var(--ink)" },
                        cut(own, Math.floor((left - 6) / 6.4)),
                        el("title", {}, own),
                    ),
                );
                spec.series.forEach((s, k) => {
                    const value = s.values[i],
                        y = top + thick * k,
                        spread = s.spread && s.spread[i];
                    svg.append(
                        el("rect", {
                            x: Math.min(x(0), x(value)),
                            y,
                            width: Math.max(0.6, Math.abs(x(value) - x(0))),
                            height: thick - 1,
                            style: `fill:${colour(spec, "series", spec.colours ? i : k)}`,
                        }),
                    );
                    if (spread)
                        svg.append(
                            el("path", {
                                style: "stroke:var(--ink);fill:none",
                                d: `M${x(value - spread)} ${y + thick / 2}H${x(value + spread)}`,
                            }),
                        );
                    if (spec.series.length === 1)
                        svg.append(
                            el("text", { x: x(Math.max(0, value + (spread || 0))) + 4, y: y + thick - 3 }, show(value)),
                        );
                    places.push([
                        x(value),
                        y + thick / 2,
                        `${own}: ${s.name} ${show(value)}` +
                            (spread ? ` ± ${show(spread)}` : "") +
                            (spec.said ? `, ${spec.said[i]}` : ""),
                    ]);
                });
            });
            svg.append(el("text", { x: right, y: bottom + 28, "text-anchor": "end" }, spec.axis));
            return bottom + 34;
        });
        legend(
            made.holder,
            spec.series.map(s => s.name),
            spec.series.map((_, k) => colour({ series: spec.series }, "series", k)),
        );
    }

    function plot(name, spec) {
        const all = [...spec.lines.flatMap(line => line.points), ...(spec.dots || [])];
        if (!all.length) return nothing(name, "There is nothing to show.");
        const [low, high] = spec.bounds || [Math.min(...all.flat()), Math.max(...all.flat())];
        const made = readable(name, spec.label, (svg, width, places) => {
            const left = 56,
                side = Math.min(width - left - 14, 440),
                right = left + side,
                bottom = 10 + side;
            const x = scale(low, high, left, right),
                y = scale(low, high, bottom, 10);
            for (const tick of ticks(low, high, 5))
                svg.append(
                    el("path", { class: "axis", d: `M${left} ${y(tick)}H${right}M${x(tick)} ${bottom}V10` }),
                    el("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, show(tick)),
                    el("text", { x: x(tick), y: bottom + 16, "text-anchor": "middle" }, show(tick)),
                );
            svg.append(
                el("path", {
                    style: "stroke:var(--grey);fill:none;stroke-dasharray:4 4",
                    d: `M${x(low)} ${y(low)}L${x(high)} ${y(high)}`,
                }),
                el("text", { x: right, y: bottom + 32, "text-anchor": "end" }, spec.x),
                el("text", { x: left + 4, y: 20 }, spec.y),
            );
            for (const [px, py] of spec.dots || []) {
                svg.append(el("circle", { cx: x(px), cy: y(py), r: 2.5, style: "fill:var(--grey);fill-opacity:.7" }));
                places.push([x(px), y(py), `${spec.x} ${show(px)}, ${spec.y} ${show(py)}`]);
            }
            spec.lines.forEach((line, k) => {
                const stroke = colour(spec, "lines", k);
                svg.append(
                    el("path", {
                        class: "curve top",
                        style: `stroke:${stroke}`,
                        d: line.points
                            .map(([px, py], i) => (i ? "L" : "M") + x(px).toFixed(1) + " " + y(py).toFixed(1))
                            .join(""),
                    }),
                );
                for (const [px, py] of line.points) {
                    if (line.dots) svg.append(el("circle", { cx: x(px), cy: y(py), r: 4, style: `fill:${stroke}` }));
                    places.push([x(px), y(py), `${line.name}: ${spec.x} ${show(px)}, ${spec.y} ${show(py)}`]);
                }
            });
            return bottom + 40;
        });
        legend(
            made.holder,
            spec.lines.map(line => line.name),
            spec.lines.map((_, k) => colour(spec, "lines", k)),
        );
    }

    function matrix(name, spec) {
        const count = spec.names.length,
            sums = spec.counts.map(row => row.reduce((a, b) => a + b, 0));
        readable(name, spec.label, (svg, width, places) => {
            const left = Math.min(130, width * 0.3),
                cell = Math.min(56, (width - left - 12) / count),
                top = 22,
                bottom = top + cell * count;
            const room = Math.floor((left - 8) / 6.4),
                below = Math.min(90, 7 * Math.max(...spec.names.map(own => Math.min(own.length, 12))) + 12);
            svg.append(
                el("text", { x: left - 6, y: 14, "text-anchor": "end" }, "actual"),
                el("text", { x: left, y: 14 }, "predicted, below"),
            );
            spec.counts.forEach((row, i) => {
                const y = top + cell * i;
                if (cell >= 9)
                    svg.append(
                        el(
                            "text",
                            { x: left - 6, y: y + cell / 2 + 4, "text-anchor": "end", style: "fill:var(--ink)" },
                            cut(spec.names[i], room),
                            el("title", {}, spec.names[i]),
                        ),
                    );
                row.forEach((value, j) => {
                    const x = left + cell * j,
                        share = sums[i] ? value / sums[i] : 0;
                    svg.append(
                        el("rect", {
                            x,
                            y,
                            width: cell - 1,
                            height: cell - 1,
                            style: `fill:var(--${i === j ? "train" : "evaluate"});fill-opacity:${(0.06 + 0.8 * share).toFixed(3)}`,
                        }),
                    );
                    if (cell >= 7 * String(value).length + 2 && value)
                        svg.append(
                            el(
                                "text",
                                {
                                    x: x + cell / 2,
                                    y: y + cell / 2 + 4,
                                    "text-anchor": "middle",
                                    style: "fill:var(--ink);stroke:none",
                                },
                                String(value),
                            ),
                        );
                    places.push([
                        x + cell / 2,
                        y + cell / 2,
                        `actual ${spec.names[i]}, predicted ${spec.names[j]}: ${value} rows, ${show(100 * share)} % of the class`,
                    ]);
                });
            });
            if (cell >= 9)
                spec.names.forEach((own, j) => {
                    const x = left + cell * (j + 0.5);
                    svg.append(
                        el(
                            "text",
                            {
                                x,
                                y: bottom + 8,
                                transform: `rotate(90 ${x} ${bottom + 8})`,
                                "dominant-baseline": "middle",
                                style: "fill:var(--ink)",
                            },
                            cut(own, 12),
                            el("title", {}, own),
                        ),
                    );
                });
            return bottom + below;
        });
    }

    const KINDS = { bars, plot, matrix };
    // draws {name of a picture: its description} into the elements <name>-picture
    function draw(pictures) {
        for (const [name, spec] of Object.entries(pictures)) renew(name, () => KINDS[spec.kind](name, spec));
    }
    const own = document.getElementById("model-data");
    if (own) draw(JSON.parse(own.textContent));
    return { draw };
})();
