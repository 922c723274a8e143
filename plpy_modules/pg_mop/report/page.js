"use strict";
// Draws the pictures from the data in the page, or from new data that the live page passes repeatedly (the client's
// live.js). New data are drawn in the same elements, so that focus and selections stay. Users' text becomes text, never
// markup.
window.pgMopReport = (function () {
    const SVG = "http://www.w3.org/2000/svg";
    const TOP = 8,
        READS = "It is being read.";
    let data,
        rows = [],
        byKey = new Map(),
        places = new Map(),
        marked = null;
    const redraws = new Map(); // name of a picture -> functions that draw its parts

    function el(name, attributes, ...children) {
        const svg = ["svg", "g", "path", "line", "rect", "text", "circle", "title"].includes(name);
        const made = svg ? document.createElementNS(SVG, name) : document.createElement(name);
        for (const [key, value] of Object.entries(attributes || {}))
            if (key === "style") made.style.cssText = value; // (the live page's policy forbids style attributes)
            else made.setAttribute(key, value);
        made.append(...children);
        return made;
    }
    function show(value) {
        if (value === null || value === undefined) return "–";
        if (typeof value !== "number") return String(value);
        if (Math.abs(value) >= 1e15) return value.toExponential(3).replace(/\.?0+e/, "e");
        return Math.abs(value) >= 1e4 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4));
    }
    function seconds(value) {
        return value < 120
            ? show(value) + " s"
            : value < 7200
              ? show(+(value / 60).toPrecision(3)) + " min"
              : show(+(value / 3600).toPrecision(3)) + " h";
    }
    // Only the best of the shown configurations have colours: four, which people with any kind of colour vision tell apart, and
    // the same four once more with dashes.
    const COLOURS = 4;
    function topPlace(key) {
        const c = byKey.get(key),
            place = places.get(key);
        return c && place < TOP && c.status !== "failed" ? place : null;
    }
    function colour(key) {
        const place = topPlace(key);
        return place === null ? null : `var(--c${place % COLOURS})`;
    }
    function dashed(key) {
        return topPlace(key) >= COLOURS;
    }
    function classes(key) {
        return "curve" + (key === marked ? " marked" : "") + (colour(key) ? " top" : "");
    }
    function style(key) {
        return (colour(key) ? "stroke:" + colour(key) : "") + (dashed(key) ? ";stroke-dasharray:6 4" : "");
    }
    // a line, and around the marked one a halo
    function line(key, d, more) {
        const own = el("path", { class: classes(key), style: style(key), d, ...more });
        return key === marked ? [el("path", { class: "halo", d, ...more }), own] : [own];
    }
    // texts at the ends of lines, [[x, y, key], ...]: those that end at one place are moved apart
    function endLabels(svg, ends, low, high) {
        const room = 12,
            columns = new Map();
        for (const [x, y, key] of ends)
            columns.set(Math.round(x / 30), [...(columns.get(Math.round(x / 30)) || []), [x, y, key]]);
        for (const own of columns.values()) {
            let before = low - room,
                after = high + room;
            own.sort((a, b) => a[1] - b[1]);
            for (const end of own) end[1] = before = Math.max(end[1], before + room);
            for (const end of own.reverse()) end[1] = after = Math.min(end[1], after - room);
        }
        for (const [x, y, key] of [...columns.values()].flat())
            svg.append(
                el(
                    "text",
                    {
                        x,
                        y: y + 4,
                        class: "end",
                        style: `fill:color-mix(in srgb, ${key === marked ? "var(--mark)" : colour(key)} 70%, var(--ink))`,
                    },
                    byKey.get(key)?.name || String(key),
                ),
            );
    }
    function tell(key) {
        const c = byKey.get(key);
        if (!c) return "configuration " + key;
        const told = data.varied.map(n => n + " " + show(c.parameters[n]));
        return (
            (c.name || "configuration " + key) + " (rank " + c.rank + ")" + (told.length ? ": " + told.join(", ") : "")
        );
    }
    // the last ones are drawn on top
    function ordered(keys) {
        const place = key => (key === marked ? -1 : (byKey.get(key) || { rank: 1e9 }).rank);
        return [...keys].sort((a, b) => place(b) - place(a));
    }
    function mark(key) {
        marked = marked === key ? null : key;
        for (const row of document.querySelectorAll("#board tr[data-key]"))
            row.setAttribute("aria-selected", String(+row.dataset.key === marked));
        redraw();
    }
    function redraw() {
        for (const name of redraws.keys()) draw(name);
    }
    function draw(name) {
        late.delete(name);
        for (const part of redraws.get(name)) part();
    }
    // New data are drawn in visible pictures at once, and in the others when they come into view.
    const late = new Set();
    const near = new Set(),
        views = new IntersectionObserver(
            entries => {
                for (const { target, isIntersecting } of entries) {
                    const name = target.id.replace("-picture", "");
                    if (!isIntersecting) near.delete(name);
                    else {
                        near.add(name);
                        if (late.has(name)) draw(name);
                    }
                }
            },
            { rootMargin: "50%" },
        );
    function later(name) {
        if (near.has(name)) draw(name);
        else late.add(name);
    }
    function drawLate() {
        [...late].forEach(draw);
    }
    addEventListener("beforeprint", drawLate);
    function scale(from, to, begin, end, log) {
        const f = log ? Math.log : x => x;
        const low = f(from),
            span = f(to) - low || 1;
        return x => begin + ((f(x) - low) / span) * (end - begin);
    }
    function ticks(from, to, count, log) {
        if (log) {
            const made = [];
            for (let power = Math.floor(Math.log10(from)); power <= Math.ceil(Math.log10(to)); power++)
                for (const digit of to / from < 100 ? [1, 2, 5] : [1]) {
                    const value = +(digit * 10 ** power).toPrecision(1);
                    if (value >= from && value <= to) made.push(value);
                }
            if (made.length > 1) return made;
        }
        const rough = (to - from || Math.abs(to) || 1) / count,
            power = 10 ** Math.floor(Math.log10(rough));
        const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= rough);
        const made = [];
        for (let i = Math.ceil(from / step - 1e-9); i * step <= to + step * 1e-9; i++)
            made.push(+(i * step).toPrecision(12));
        return made;
    }
    // A picture that is drawn again when its width or the marked row changes. `draw(svg, width)` returns its height.
    function picture(name, label, draw, keys) {
        const holder = document.getElementById(name + "-picture");
        const readout = el("p", { class: "readout", "aria-live": "polite" });
        const svg = el("svg", { role: "img" });
        const frame = el("div", keys ? { tabindex: "0", role: "group" } : {}, svg);
        holder.append(frame, readout);
        function named() {
            svg.setAttribute("aria-label", label());
            if (keys) frame.setAttribute("aria-label", label() + " Arrow keys move.");
        }
        named(); // (drawn a frame later, or when it comes into view; a screen reader may reach it before)
        function redraw() {
            const width = Math.max(280, holder.clientWidth);
            svg.replaceChildren();
            const height = draw(svg, width, text => {
                readout.textContent = text;
            });
            named();
            svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
        }
        let width = 0;
        new ResizeObserver(() => {
            if (svg.isConnected && holder.clientWidth !== width) {
                width = holder.clientWidth;
                requestAnimationFrame(redraw);
            }
        }).observe(frame);
        redraws.get(name).push(redraw);
        if (keys)
            frame.addEventListener("keydown", event => {
                if (
                    keys(
                        event.key,
                        text => {
                            readout.textContent = text;
                        },
                        event,
                    )
                )
                    event.preventDefault();
            });
        // a ring around the place that is read out
        function ring(x, y, r = 5) {
            svg.querySelectorAll(".here").forEach(n => n.remove());
            svg.append(el("circle", { class: "here", cx: x, cy: y, r }));
        }
        // Of `places()`, [x, y, value], the one that is nearest to the pointer and nearer than `far` is told, and chosen by a click.
        function readable(places, far, tell, choose) {
            const nearest = event => {
                const [px, py] = at(svg, event);
                const near = places().map(([x, y, value]) => [Math.hypot(x - px, y - py), value]);
                return near.filter(p => p[0] < far).reduce((a, b) => (a && a[0] <= b[0] ? a : b), null);
            };
            for (const [name, act] of Object.entries({ pointermove: tell, click: choose || (() => {}) }))
                svg.addEventListener(name, event => {
                    const found = nearest(event);
                    if (found) act(found[1]);
                });
        }
        const say = text => {
            readout.textContent = text;
        };
        return { holder, frame, svg, redraw, say, ring, readable };
    }
    // a table of values, which scrolls within its region; `numeric`: columns of numbers, also where a value is a text
    function plainTable(names, rows, caption, numeric = []) {
        return el(
            "div",
            { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
            el(
                "table",
                {},
                el("caption", {}, caption),
                el(
                    "thead",
                    {},
                    el(
                        "tr",
                        {},
                        ...names.map((name, i) =>
                            el(
                                "th",
                                { scope: "col", ...(numeric[i] ? { class: "number" } : {}) },
                                el("span", {}, name),
                            ),
                        ),
                    ),
                ),
                el(
                    "tbody",
                    {},
                    ...rows.map(row =>
                        el(
                            "tr",
                            {},
                            ...row.map((value, i) =>
                                value instanceof Node
                                    ? el("td", {}, value)
                                    : el(
                                          "td",
                                          typeof value === "number" || numeric[i] ? { class: "number" } : {},
                                          value === null ? "" : show(value),
                                      ),
                            ),
                        ),
                    ),
                ),
            ),
        );
    }
    function nothing(name, text) {
        document.getElementById(name + "-picture").append(el("p", { class: "note" }, text));
    }
    function at(svg, event) {
        const box = svg.getBoundingClientRect(),
            view = svg.viewBox.baseVal;
        return [
            ((event.clientX - box.left) / box.width) * view.width,
            ((event.clientY - box.top) / box.height) * view.height,
        ];
    }
    function legend(name, holder) {
        const list = el("div", { class: "controls legend", role: "group", "aria-label": "The best configurations" });
        let buttons = new Map();
        function fill() {
            const keys = rows.filter(c => colour(c.mst_key)).map(c => c.mst_key),
                before = buttons;
            buttons = new Map(keys.map(key => [key, before.get(key) || button(key)]));
            for (const [key, own] of buttons) {
                own.setAttribute("aria-pressed", String(key === marked));
                own.firstChild.style.background = dashed(key)
                    ? `repeating-linear-gradient(90deg, ${colour(key)} 0 4px, transparent 4px 6px)`
                    : colour(key);
                own.firstChild.style.color = colour(key);
            }
            if ([...before.keys()].join() !== keys.join()) {
                const focused = document.activeElement;
                list.replaceChildren(...buttons.values());
                if (list.contains(focused)) focused.focus();
            }
        }
        function button(key) {
            const made = el("button", { type: "button" }, el("i"), byKey.get(key).name || String(key));
            made.addEventListener("click", () => mark(key));
            return made;
        }
        redraws.get(name).push(fill);
        fill();
        holder.prepend(list);
    }

    // --- worker sessions ---------------------------------------------------------------------------------
    // times of a run that people count in: whole seconds, minutes, hours, days
    const STEPS = [
        0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600,
        43200, 86400,
    ];
    function timeTicks(from, to, count) {
        const rough = (to - from || 1) / count,
            step = STEPS.find(s => s >= rough) || 86400 * Math.ceil(rough / 86400),
            made = [];
        for (let i = Math.ceil(from / step - 1e-9); i * step <= to + step * 1e-9; i++)
            made.push(+(i * step).toPrecision(12));
        return { step, made };
    }
    function time(value, step) {
        if (step < 60)
            return value >= 60
                ? `${Math.floor(value / 60)}:${String(Math.round(value % 60)).padStart(2, "0")}`
                : show(value) + " s";
        if (step < 3600 && value < 3600) return Math.round(value / 60) + " min";
        return `${Math.floor(value / 3600)}:${String(Math.round((value % 3600) / 60)).padStart(2, "0")} h`;
    }
    function sessions() {
        if (!data.bars.length) return nothing("sessions", data.pending ? READS : "No unit has ended yet.");
        const begin = () => Math.min(...data.bars.map(b => b[1])),
            end = () => Math.max(...data.bars.map(b => b[2]));
        let x;
        const high = 26,
            what = kind => (kind === "train" ? "training units" : "evaluations");
        const made = picture(
            "sessions",
            () => `What ${data.lanes.length} worker sessions did from ${seconds(begin())} to ${seconds(end())}.`,
            (svg, width) => {
                const left = 64,
                    right = width - 12,
                    bottom = 10 + data.lanes.length * high;
                x = scale(begin(), end(), left, right);
                const { step, made: marks } = timeTicks(begin(), end(), Math.min(8, width / 90));
                for (const tick of marks)
                    svg.append(
                        el("path", { class: "axis", d: `M${x(tick)} 6V${bottom}` }),
                        el("text", { x: x(tick), y: bottom + 16, "text-anchor": "middle" }, time(tick, step)),
                    );
                data.lanes.forEach((pid, lane) =>
                    svg.append(
                        el("text", { x: left - 6, y: 10 + lane * high + 15, "text-anchor": "end" }, String(pid)),
                    ),
                );
                const hops = [],
                    filled = new Map();
                for (const bar of data.bars) {
                    const mine = bar[4].includes(marked),
                        busy = bar[7] ?? 1,
                        place = bar[0] + " " + bar[1];
                    // of a slice of the time, the height is the busy part of it: training below, evaluations on it
                    const full = high - 6,
                        tall = full * Math.min(1, busy),
                        below = data.merged_bars ? filled.get(place) || 0 : full - tall;
                    filled.set(place, (filled.get(place) || 0) + tall);
                    svg.append(
                        el("rect", {
                            class: bar[3] + (mine ? " marked" : ""),
                            x: x(bar[1]).toFixed(2),
                            y: (10 + bar[0] * high + 2 + Math.max(0, full - tall - below)).toFixed(2),
                            width: Math.max(0.6, x(bar[2]) - x(bar[1]) - (data.merged_bars ? 0 : 0.3)).toFixed(2),
                            height: tall.toFixed(2),
                        }),
                    );
                    if (mine && bar[3] === "train")
                        hops.push(`${x((bar[1] + bar[2]) / 2).toFixed(1)} ${10 + bar[0] * high + high / 2 - 1}`);
                }
                if (hops.length > 1) svg.append(el("path", { class: "hops", d: "M" + hops.join("L") }));
                return bottom + 24;
            },
            (key, say) => {
                const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[key];
                if (!step) return false;
                here = Math.min(data.bars.length - 1, Math.max(0, here + step));
                say(tellBars([data.bars[here]]));
                return true;
            },
        );
        let here = -1;
        function tellBars(bars) {
            const [bar] = bars,
                where = `session ${data.lanes[bar[0]]}, ${seconds(bar[1])} to ${seconds(bar[2])}: `;
            if (data.merged_bars)
                return (
                    where +
                    bars.map(b => `${Math.round(100 * (b[7] ?? 1))} % of it ${what(b[3])}, ${b[6]} begun`).join("; ")
                );
            return (
                where +
                `${bar[3] === "train" ? "training unit" : "evaluation"} on segment ${bar[5]}` +
                (bar[4].length === 1
                    ? ` of ${tell(bar[4][0])}`
                    : ` of ${bar[4].length || bar[6]} configurations` +
                      (bar[4].length ? `: ${bar[4].slice(0, 12).join(", ")}${bar[4].length > 12 ? ", …" : ""}` : ""))
            );
        }
        function under(event) {
            const [px, py] = at(made.svg, event),
                lane = Math.floor((py - 10) / high);
            return data.bars.filter(b => b[0] === lane && x(b[1]) <= px && px <= x(b[2]) + 1);
        }
        made.svg.addEventListener("pointermove", event => {
            const bars = under(event);
            if (bars.length) made.say(tellBars(data.merged_bars ? bars.filter(b => b[1] === bars[0][1]) : bars));
        });
        made.svg.addEventListener("click", event => {
            const [bar] = under(event);
            // (in a bar of several configurations, each click marks the next one)
            if (bar && bar[4].length) mark(bar[4][(bar[4].indexOf(marked) + 1) % bar[4].length]);
        });
        const key = el("div", { class: "controls legend" });
        for (const [kind, text] of [
            ["train", "training units"],
            ["evaluate", "evaluations"],
        ])
            key.append(el("span", {}, el("i", { style: `background:var(--${kind});height:.7rem` }), text));
        key.append(
            el(
                "span",
                { class: "note" },
                "each line a session, by its process id" +
                    (data.merged_bars
                        ? "; the height is the part of the time"
                        : "; a configuration that is marked hops along the dashed line"),
            ),
        );
        made.holder.prepend(key);
    }

    // --- the tree of stages ------------------------------------------------------------------------------
    function stages() {
        if (!data.stages.length) return nothing("stages", data.pending ? READS : "Nothing has been asked for yet.");
        const last = () => Math.max(...data.stages.map(n => n.last)),
            lines = () => Math.max(...data.stages.map(n => n.y)) + 1;
        let x, y;
        const made = picture(
            "stages",
            () => `The tree of stages of ${lines()} paths over ${last()} iterations.`,
            (svg, width) => {
                const step = Math.min(18, Math.max(5, 700 / lines()));
                const grows = new Set(data.stages.map(n => n.parent));
                const left = 12,
                    right = width - 60,
                    bottom = 14 + lines() * step;
                x = scale(0, last(), left, right);
                y = row => 14 + row * step;
                for (const tick of ticks(0, last(), Math.min(10, width / 60)).filter(Number.isInteger))
                    svg.append(
                        el("path", { class: "axis", d: `M${x(tick)} 6V${bottom}` }),
                        el("text", { x: x(tick), y: bottom + 14, "text-anchor": "middle" }, show(tick)),
                    );
                for (const [place, node] of data.stages.entries()) {
                    const parent = node.parent === null ? null : data.stages[node.parent];
                    const mine = node.keys.includes(marked),
                        only = node.keys.length === 1 ? node.keys[0] : null;
                    const d =
                        (parent
                            ? `M${x(parent.last)} ${y(parent.y)}L${x(node.first - 1) + 4} ${y(node.y)}`
                            : `M${x(node.first - 1)} ${y(node.y)}`) + `H${x(node.last)}`;
                    if (mine) svg.append(el("path", { class: "halo", d }));
                    svg.append(
                        el("path", {
                            class: (mine ? "marked " : "") + (only !== null ? classes(only) : "curve top"),
                            style:
                                only !== null
                                    ? style(only)
                                    : `stroke:var(--soft);stroke-width:${Math.min(6, 1 + node.keys.length)}`,
                            d,
                        }),
                    );
                    if (step >= 11 && !grows.has(place))
                        svg.append(
                            el(
                                "text",
                                { x: x(node.last) + 5, y: y(node.y) + 4 },
                                node.keys.slice(0, 3).join(", ") + (node.keys.length > 3 ? "…" : ""),
                            ),
                        );
                }
                svg.append(el("text", { x: right + 48, y: bottom + 28, "text-anchor": "end" }, "iteration"));
                return bottom + 34;
            },
        );
        function nearest(event) {
            const [px, py] = at(made.svg, event);
            let best = null;
            for (const node of data.stages)
                if (x(node.first - 1) <= px && px <= x(node.last) + 2) {
                    const distance = Math.abs(y(node.y) - py);
                    if (!best || distance < best[0]) best = [distance, node];
                }
            return best && best[0] < 12 ? best[1] : null;
        }
        made.svg.addEventListener("pointermove", event => {
            const node = nearest(event);
            if (node)
                made.say(
                    `iterations ${node.first} to ${node.last}: ` +
                        (node.keys.length > 1
                            ? `shared by ${node.keys.length} configurations: ${node.keys.slice(0, 20).join(", ")}`
                            : tell(node.keys[0])),
                );
        });
        made.svg.addEventListener("click", event => {
            const node = nearest(event);
            if (node) mark(node.keys[0]);
        });
    }

    // A picture is made again only if its kind changes: from empty to filled, or with other curves to select.
    const PICTURES = {
        sessions: [
            sessions,
            () => [data.bars.length === 0, data.bars.length === 0 && !!data.pending, data.merged_bars].join(),
        ],
        stages: [stages, () => [data.stages.length === 0, data.stages.length === 0 && !!data.pending].join()],
    };
    const kinds = {};
    function update(given) {
        data = given;
        rows = data.configurations;
        byKey = new Map(rows.map(c => [c.mst_key, c]));
        places = new Map([...rows].sort((a, b) => a.rank - b.rank).map((c, place) => [c.mst_key, place]));
        for (const [name, [make, kind]] of Object.entries(PICTURES)) {
            if (!document.getElementById(name + "-picture")) continue;
            if (kinds[name] === kind()) {
                later(name);
                continue;
            }
            kinds[name] = kind();
            renew(name, make);
        }
    }
    function renew(name, make) {
        redraws.set(name, []);
        late.delete(name);
        views.observe(document.getElementById(name + "-picture"));
        document.getElementById(name + "-picture").replaceChildren();
        make();
    }
    // another script's picture: `make(current)` draws it, of the data that `current()` returns
    function add(name, make, kind) {
        PICTURES[name] = [() => make(() => data), () => kind(data)];
        if (data) update(data);
    }
    const own = document.getElementById("data");
    if (own) update(JSON.parse(own.textContent));
    // `hooks`: what the live page does with a filter that is drawn (axes.js)
    return {
        update,
        renew,
        redraw,
        add,
        picture,
        nothing,
        plainTable,
        at,
        scale,
        ticks,
        mark,
        drawLate,
        el,
        show,
        seconds,
        tell,
        marked: () => marked,
        hooks: null,
        timeTicks,
        time,
        READS,
        measure: () => data.measure.series,
        line,
        ordered,
        endLabels,
        legend,
        colour,
        classes,
        style,
        rows: () => rows,
        row: key => byKey.get(key),
    };
})();
