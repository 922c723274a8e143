"use strict";
// The summary of a run in four cards: how it goes, the best configuration, what failed and why, what to do next; and the
// sections of failures and of next steps. The live page passes its progress repeatedly; a report has what was true when it was
// made. Users' text becomes text, never markup.
window.pgMopStrip = (function () {
    const { el, show, plainTable } = window.pgMopReport;
    const OLD = 10; // seconds after which a state is called old

    function clock(value) {
        const s = Math.max(0, Math.round(value)),
            two = n => String(n).padStart(2, "0");
        return s < 60
            ? s + " s"
            : s < 3600
              ? `${Math.floor(s / 60)}:${two(s % 60)}`
              : `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
    }
    // the time of day, by this machine's clock; the day only where it is another one
    function hour(seconds) {
        const then = new Date(Date.now() + seconds * 1000),
            today = new Date().toDateString() === then.toDateString();
        const time = then.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
        return today
            ? time
            : `${then.toLocaleDateString([], { weekday: "short", day: "numeric", month: "short" })}, ${time}`;
    }
    function copying(text, label, said) {
        const made = el("button", { type: "button", class: "copy", title: text, "aria-label": said || label }, label);
        made.addEventListener("click", event => {
            event.stopPropagation();
            const done = worked => {
                made.textContent = worked ? "copied" : "select and copy it below";
                setTimeout(() => {
                    made.textContent = label;
                }, 2000);
            };
            copy(text).then(done, () => done(false));
        });
        return made;
    }
    // (a file opened from the disk has no clipboard: then by a selection)
    async function copy(text) {
        try {
            await navigator.clipboard.writeText(text);
            return true;
        } catch {
            /* below */
        }
        const area = el("textarea", { style: "position:fixed;opacity:0" });
        area.value = text;
        document.body.append(area);
        area.select();
        const worked = document.execCommand("copy");
        area.remove();
        return worked;
    }
    function sparkline(points, label, width = 150, height = 34) {
        const svg = el("svg", { class: "spark", role: "img", "aria-label": label, viewBox: `0 0 ${width} ${height}` });
        if (points.length < 2) {
            if (points.length) svg.append(el("circle", { cx: width / 2, cy: height / 2, r: 3, fill: "var(--accent)" }));
            return svg;
        }
        const xs = points.map(p => p[0]),
            ys = points.map(p => p[1]),
            low = Math.min(...ys),
            high = Math.max(...ys);
        const x = v => 3 + ((v - xs[0]) / (xs[xs.length - 1] - xs[0] || 1)) * (width - 8);
        const y = v => height - 4 - ((v - low) / (high - low || 1)) * (height - 8);
        // a step: the best value stays until the next better one
        const d = points
            .map((p, i) =>
                i ? `H${x(p[0]).toFixed(1)}V${y(p[1]).toFixed(1)}` : `M${x(p[0]).toFixed(1)} ${y(p[1]).toFixed(1)}`,
            )
            .join("");
        const last = points[points.length - 1];
        svg.append(
            el("path", { d, fill: "none", stroke: "var(--accent)", "stroke-width": 1.6 }),
            el("circle", { cx: x(last[0]), cy: y(last[1]), r: 2.5, fill: "var(--accent)" }),
        );
        return svg;
    }
    function trend(summary) {
        const points = summary.over_time,
            series = summary.best?.series;
        if (!points?.length || !series) return null;
        const [first, last] = [points[0], points[points.length - 1]];
        return sparkline(
            points,
            `Best ${series} over time: from ${show(first[1])} after ${clock(first[0])} to ${show(last[1])} after ${clock(last[0])}.`,
        );
    }
    function parameters(best) {
        return Object.entries(best.parameters)
            .map(([name, value]) => `${name} ${show(value)}`)
            .join(", ");
    }
    function first(text) {
        return String(text || "").split("\n")[0];
    }
    function failedOf(s) {
        return `${s.failed} of ${s.of}` + (s.causes ? `, ${s.causes} cause${s.causes === 1 ? "" : "s"}` : "");
    }
    // A card keeps its element: only what changed is made anew, so that focus and a selection stay.
    const made = new WeakMap();
    function fill(holder, name, value, make) {
        const before = made.get(holder) || {},
            text = JSON.stringify(value);
        if (before[name]?.text === text) return;
        const card = before[name]?.card || el("div", { class: "card", id: "card-" + name });
        const focused = card.contains(document.activeElement)
            ? [...card.querySelectorAll("button, a, summary")].indexOf(document.activeElement)
            : -1;
        card.replaceChildren(...make(value).filter(Boolean));
        if (focused >= 0) card.querySelectorAll("button, a, summary")[focused]?.focus({ preventScroll: true });
        if (!before[name]) holder.append(card);
        before[name] = { text, card };
        made.set(holder, before);
    }
    // `live`: {status, done, total, left, seconds, age, data_age, error, keras}: what is known now; in a report, of its making.
    // `age`: seconds since the counters of units were read; `data_age`: since the results were right, which are read more rarely
    function strip(holder, data, live) {
        const s = data.summary,
            running = live.status === "running";
        const state = live.status === s.status ? s.state : live.status,
            tone =
                live.status === s.status
                    ? s.tone
                    : { running: "busy", finished: "good", cancelled: "calm" }[live.status] || "bad";
        fill(holder, "state", [state, tone, live.done, live.total, running], () => [
            el("h2", {}, "State"),
            el("p", { class: "big tone-" + tone }, state),
            live.total ? el("progress", { max: live.total, value: live.done, "aria-label": "Finished units" }) : null,
            el("p", {}, el("span", { "data-tick": "units" }), " ", el("span", { "data-tick": "end" })),
            el("p", { class: "note", "data-tick": "time" }),
        ]);
        const best = s.best;
        fill(holder, "best", [best, s.over_time, !!live.keras, running], () => [
            el("h2", {}, running ? "Best so far" : "Best"),
            ...(best
                ? [
                      el("p", { class: "big" }, show(best.value), el("span", { class: "of" }, " " + best.series)),
                      el(
                          "p",
                          { class: "clip" },
                          el("b", {}, `configuration ${best.mst_key}`),
                          parameters(best) ? ": " + parameters(best) : "",
                      ),
                      trend(s),
                      el("p", { class: "note", "data-tick": "results" }),
                      el(
                          "p",
                          { class: "acts" },
                          best.predict ? copying(best.predict, "Copy predict SQL") : "",
                          live.keras && best.export
                              ? live.keras(best.mst_key)
                              : best.export
                                ? copying(best.export, "Copy export SQL")
                                : "",
                          best.predict || best.export
                              ? ""
                              : el(
                                    "span",
                                    { class: "note" },
                                    running ? "its model can be used when the run has ended" : "",
                                ),
                      ),
                  ]
                : [
                      el("p", { class: "big calm" }, "–"),
                      el("p", { class: "note" }, s.of ? "no evaluation yet" : "no configuration yet"),
                  ]),
        ]);
        fill(holder, "failed", [s.failed, s.of, s.causes, data.causes.slice(0, 2)], () => [
            el("h2", {}, "Failed"),
            el(
                "p",
                { class: "big tone-" + (s.failed ? (s.failed === s.of ? "bad" : "warn") : "good") },
                s.failed ? failedOf(s) : "none",
            ),
            ...data.causes
                .slice(0, 2)
                .map(c =>
                    el(
                        "p",
                        { class: "clip", title: c.error },
                        `${c.count} × ${first(c.error)}`,
                        c.shared ? el("span", { class: "note" }, " – " + c.shared) : "",
                    ),
                ),
            s.failed ? el("p", { class: "acts" }, el("a", { href: "#failures" }, "All failures")) : null,
        ]);
        fill(holder, "next", data.next.slice(0, 2), () => [
            el("h2", {}, "What next"),
            ...(data.next.length
                ? data.next
                      .slice(0, 2)
                      .map(step =>
                          el(
                              "p",
                              { class: "step" },
                              step.say,
                              " ",
                              step.sql ? copying(step.sql, "Copy SQL", "Copy SQL: " + step.say) : "",
                          ),
                      )
                : [el("p", {}, running ? "Let it go on: nothing stands out yet." : "Nothing stands out.")]),
            data.next.length
                ? el(
                      "p",
                      { class: "acts" },
                      el(
                          "a",
                          { href: "#next" },
                          data.next.length > 2 ? `All ${data.next.length} statements` : "The statements",
                      ),
                  )
                : null,
        ]);
        tick(holder, live);
    }
    // the words for results that are not of now ("" for those that are); `live` as in `strip`
    function aged(live) {
        const age = (live.data_age || 0) + (performance.now() - live.at) / 1000;
        return live.ticks && live.status === "running" && age > OLD ? `results as of ${clock(age)} ago` : "";
    }
    // the words that change each second, between two answers of the server, too
    function tick(holder, live) {
        const passed = (performance.now() - live.at) / 1000,
            running = live.status === "running";
        const set = (name, text) => {
            const own = holder.querySelector(`[data-tick="${name}"]`);
            if (own && own.textContent !== text) own.textContent = text;
        };
        const share = live.total ? Math.floor((100 * live.done) / live.total) : 0;
        set(
            "units",
            live.total
                ? `${live.done} of ${live.total} units` + (running ? `, ${share} %` : "")
                : live.status === "finished"
                  ? "no new units"
                  : "no units yet",
        );
        const left = live.left === null || live.left === undefined ? null : live.left - passed;
        set(
            "end",
            !running || left === null
                ? ""
                : !live.ticks
                  ? `· about ${clock(live.left)} left when this was made`
                  : left > 0
                    ? `· done at ${hour(left)} (in ${clock(left)})`
                    : "· done any moment",
        );
        const age = (live.age || 0) + passed,
            old = live.ticks && running && age > OLD;
        set("results", aged(live));
        const took =
            live.seconds === null || live.seconds === undefined
                ? ""
                : running
                  ? `running for ${clock(live.seconds + (live.ticks ? passed : 0))}`
                  : `in ${clock(live.seconds)}`;
        set("time", [took, old ? `as of ${clock(age)} ago` : ""].filter(Boolean).join(" · "));
    }

    // --- all failures, and all statements ------------------------------------------------------------------
    function code(sql) {
        return el("pre", { tabindex: "0" }, el("code", {}, sql));
    }
    function failures(holder, data, failed) {
        fill(holder, "causes", [data.causes, failed], () =>
            data.causes.length
                ? [
                      ...data.causes.map(c =>
                          el(
                              "details",
                              data.causes.length <= 3 ? { open: "" } : {},
                              el("summary", {}, el("b", {}, `${c.count} × `), first(c.error)),
                              el(
                                  "p",
                                  {},
                                  c.keys.length > 1 ? "Configurations " : "Configuration ",
                                  c.keys.join(", "),
                                  c.count > c.keys.length ? ` and ${c.count - c.keys.length} more` : "",
                                  ". ",
                                  c.shared || "",
                              ),
                              c.help ? el("p", {}, c.help) : "",
                              ...(c.sql
                                  ? [
                                        el(
                                            "p",
                                            { class: "acts" },
                                            copying(c.sql, "Copy SQL", `Copy the SQL against: ${first(c.error)}`),
                                        ),
                                        code(c.sql),
                                    ]
                                  : []),
                          ),
                      ),
                      el(
                          "details",
                          {},
                          el("summary", {}, `All ${failed.length} failed configurations`),
                          plainTable(
                              ["mst_key", "parameters", "error"],
                              failed.map(([key, ...texts]) => [String(key), ...texts]),
                              "Failed configurations",
                              [true],
                          ),
                      ),
                  ]
                : [el("p", {}, "No configuration has failed.")],
        );
    }
    // `more(sql)`: further buttons of the live page
    function next(holder, data, more = () => []) {
        fill(holder, "steps", data.next, () =>
            data.next.length
                ? data.next.map(step =>
                      el(
                          "details",
                          data.next.length <= 2 ? { open: "" } : {},
                          el("summary", {}, step.say),
                          ...(step.sql
                              ? [
                                    el(
                                        "p",
                                        { class: "acts" },
                                        copying(step.sql, "Copy SQL", "Copy SQL: " + step.say),
                                        ...more(step.sql),
                                    ),
                                    code(step.sql),
                                ]
                              : []),
                      ),
                  )
                : [el("p", {}, "Nothing stands out.")],
        );
    }
    // the failed configurations of a report or a page: [mst_key, parameters as text, error]
    function failedRows(configurations, varied) {
        return configurations
            .filter(c => c.status === "failed")
            .map(c => [
                c.mst_key,
                varied
                    .filter(n => c.parameters[n] !== undefined && c.parameters[n] !== null)
                    .map(n => `${n} ${show(c.parameters[n])}`)
                    .join(", "),
                c.reason || "",
            ]);
    }

    const own = document.getElementById("data"),
        holder = document.getElementById("strip");
    if (own && holder) {
        const data = JSON.parse(own.textContent);
        if (data.summary) {
            const s = data.summary;
            strip(holder, data, {
                status: s.status,
                done: s.done,
                total: s.total,
                left: s.seconds_left,
                seconds: s.seconds,
                at: performance.now(),
                error: data.run.error,
                ticks: false,
            });
            failures(document.getElementById("causes"), data, data.failed);
            next(document.getElementById("steps"), data);
        }
    }
    return {
        strip,
        tick,
        aged,
        failures,
        next,
        clock,
        hour,
        copying,
        sparkline,
        trend,
        parameters,
        failedOf,
        failedRows,
        first,
    };
})();
