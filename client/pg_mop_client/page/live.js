"use strict";
// The live page: asks mop for changes and fills tables; page.js, the report's script, draws. All values from the database
// become text, never markup. The address contains the filter and the order.
(function () {
    const { el, show, plainTable, update, redraw, mark, marked } = window.pgMopReport,
        { roving } = window.pgMopTables;
    const { strip, tick, aged, failures, next, clock } = window.pgMopStrip;
    // mop dashboard prints the token behind # in the address: no server sees this part, and all tabs of the page share it
    const brought = /^#token=([\w-]+)$/.exec(location.hash)?.[1];
    try {
        if (brought) localStorage.setItem("token", brought);
    } catch {
        /* then only this document has the token */
    }
    const token = () => {
        try {
            return localStorage.getItem("token") || brought || "";
        } catch {
            return brought || "";
        }
    };
    addEventListener("hashchange", () => {
        if (location.hash.startsWith("#token=")) location.reload();
    });
    const $ = id => document.getElementById(id);
    const asked = new URLSearchParams(location.search);
    const where = () => location.pathname + (asked.size ? "?" + asked : "");
    history.replaceState(null, "", where());
    const run = /^\/run\/(\d+)$/.exec(location.pathname)?.[1],
        compared = location.pathname === "/compare";
    const models = location.pathname === "/models",
        model = location.pathname === "/model";
    $("main").hidden = true; // until there is something to show: of a run that nobody sees, there is nothing to press
    $("main").replaceChildren(
        $(run || compared ? "run-page" : models ? "models-page" : model ? "model-page" : "list-page").content.cloneNode(
            true,
        ),
    );

    // --- requests ------------------------------------------------------------------------------------------
    async function ask(path, given, read = answer => answer.json()) {
        let answer;
        try {
            answer = await fetch(path, {
                headers: { "x-mop-token": token() },
                ...(given ? { method: "POST", body: JSON.stringify(given) } : {}),
            });
        } catch {
            throw { said: "mop dashboard does not answer: trying again" };
        }
        if (answer.status === 403)
            throw {
                said: token()
                    ? "mop dashboard has been restarted: open the address that it has printed"
                    : "the page needs its token: open the address that mop dashboard has printed",
            };
        if (answer.ok) return read(answer);
        const found = await answer.json().catch(() => ({ error: "mop dashboard has failed: " + answer.status }));
        throw {
            said: answer.status === 503 ? found.error + ": trying again; the runs do not depend on it" : found.error,
            hint: found.hint,
        };
    }
    const READING = run ? `Run ${run} is being read.` : "It is being read.";
    let turn = 0,
        timer,
        was_lost = false,
        have = "";
    const path = run
        ? `/api/run/${run}`
        : compared
          ? "/api/compare"
          : models
            ? "/api/models"
            : model
              ? "/api/model"
              : "/api/runs";
    async function refresh() {
        clearTimeout(timer);
        const mine = ++turn,
            query = new URLSearchParams(asked);
        if (have) query.set("have", have);
        let rest = 5000;
        const waits = $("main").hidden && !was_lost; // (the first answer of a large run takes seconds)
        if (waits) $("headline").textContent = READING;
        try {
            const found = await ask(path + "?" + query).finally(() => {
                if ($("headline").textContent === READING) $("headline").textContent = "";
            });
            if (mine !== turn) return;
            if (was_lost) say("connected again");
            was_lost = false;
            $("connection").textContent = "";
            $("main").hidden = false;
            const began = performance.now();
            rest =
                run || compared
                    ? showRun(found)
                    : models
                      ? lists.showModels(found)
                      : model
                        ? showModel(found)
                        : lists.showList(found);
            document.documentElement.dataset.updated = (performance.now() - began).toFixed(1); // milliseconds, for measurements
        } catch (problem) {
            if (mine !== turn) return;
            if (!problem.said) console.error(problem);
            was_lost = true;
            if ($("connection").textContent !== message(problem)) $("connection").textContent = message(problem);
            rest = 2000;
        }
        timer = setTimeout(refresh, document.hidden ? 10000 : rest);
    }
    document.addEventListener("visibilitychange", () => {
        if (!document.hidden) refresh();
    });
    function change(set) {
        set();
        have = "";
        history.replaceState(null, "", where());
        refresh();
    }
    function message(problem) {
        return (problem.said || "the page has failed: " + problem) + (problem.hint ? " – " + problem.hint : "");
    }
    let saying;
    function say(text) {
        clearTimeout(saying);
        $("said").textContent = text;
        saying = setTimeout(() => {
            $("said").textContent = "";
        }, 15000);
    }

    // --- pieces --------------------------------------------------------------------------------------------
    const filled = {};
    // makes the children anew only if their data have changed: so focus and scroll position stay
    function fill(id, value, make) {
        const text = JSON.stringify(value);
        if (filled[id] === text) return false;
        filled[id] = text;
        $(id).replaceChildren(...make(value));
        return true;
    }
    // after the replacement, data-focus identifies the element that had the focus
    function keepingFocus(work) {
        const name = document.activeElement?.dataset?.focus;
        work();
        if (name === undefined || document.activeElement.dataset.focus === name) return;
        for (const other of document.querySelectorAll("[data-focus]"))
            if (other.dataset.focus === name) {
                other.focus({ preventScroll: true });
                break;
            }
    }
    function button(text, work, given) {
        const made = el("button", { type: "button", ...given }, text);
        made.addEventListener("click", work);
        return made;
    }
    function pages(page, count) {
        keepingFocus(() =>
            fill("pages", [page, count], () =>
                count < 2
                    ? []
                    : [
                          ...[
                              ["First", 1],
                              ["Previous", page - 1],
                              ["Next", page + 1],
                              ["Last", count],
                          ].map(([text, to]) => {
                              const made = button(
                                  text,
                                  () => {
                                      if (to >= 1 && to <= count && to !== page) change(() => asked.set("page", to));
                                  },
                                  { "data-focus": "page" + text },
                              );
                              // (a disabled button would lose the focus)
                              if (to < 1 || to > count || to === page) made.setAttribute("aria-disabled", "true");
                              return made;
                          }),
                          el("span", { class: "note" }, `page ${page} of ${count}`),
                      ],
            ),
        );
    }
    function state(text) {
        return el("span", { class: "state-" + (/^[a-z]+$/.test(text) ? text : "other") }, text);
    }
    function pairs(given) {
        return el(
            "dl",
            {},
            ...Object.entries(given)
                .filter(([, v]) => v !== null && v !== undefined && v !== "")
                .map(([name, value]) =>
                    el(
                        "div",
                        {},
                        el("dt", {}, name),
                        el("dd", {}, typeof value === "object" ? JSON.stringify(value) : String(value)),
                    ),
                ),
        );
    }
    const typing = {}; // a timer for each field
    function filter(name, value) {
        clearTimeout(typing[name]);
        typing[name] = setTimeout(
            () =>
                change(() => {
                    if (value === "") asked.delete(name);
                    else asked.set(name, value);
                    asked.delete("page");
                }),
            150,
        );
    }
    const notes = window.pgMopNotes({ ask, say, message, refresh, button });
    const submitting = window.pgMopSubmit({ ask, say, message, refresh, button });
    const lists = window.pgMopLists({
        asked,
        change,
        filter,
        fill,
        keepingFocus,
        pages,
        button,
        notes,
        submitting,
        $,
    });
    const filters = window.pgMopFilter({ asked, change, filter, where, fill, $ });
    const { save, seen, saves } = window.pgMopFiles(
        run ? "run_" + run : model ? "model_" + (asked.get("name") || "").replace(/\W+/g, "_") : "runs",
        asked,
    );
    const parts = window.pgMopSections({ pairs, plainTable, saves, $ });
    const drawer = run
        ? window.pgMopDrawer({ asked, ask, where, message, pairs, plainTable, button, parts, run, $ })
        : null;

    // --- a named model -------------------------------------------------------------------------------------
    function sections(id, given) {
        if (fill(id, given, () => parts.build(given))) parts.draw(given);
    }
    let measured = null; // the report's data of the last evaluation
    function showModel(found) {
        const [about, ...others] = found.stored;
        $("title").textContent = document.title = `Model ${found.model}, version ${found.version}`;
        $("headline").textContent = measured?.headline || found.headline;
        sections("about-part", [about]);
        sections("other-parts", others);
        fill("version", [asked.get("version") || "", found.versions], () =>
            ["", ...found.versions].map(v =>
                el(
                    "option",
                    { value: v, ...(String(v) === (asked.get("version") || "") ? { selected: "" } : {}) },
                    v === "" ? "in use" : String(v),
                ),
            ),
        );
        if (!$("source").value && !$("source").dataset.touched) $("source").value = found.test_part || "";
        return 10000;
    }
    function beginModel() {
        document.querySelector(".skip").setAttribute("href", "#about-part");
        document.querySelector(".skip").textContent = "To the version";
        const tell = text => {
            $("evaluation").textContent = text;
        };
        $("version").addEventListener("change", () => {
            if ($("version").value) asked.set("version", $("version").value);
            else asked.delete("version");
            location.href = where(); // (measures of another version would mislead)
        });
        $("source").addEventListener("input", () => {
            $("source").dataset.touched = "1";
        });
        $("html").addEventListener("click", () =>
            save(seen(), `model_${(asked.get("name") || "").replace(/\W+/g, "_")}.html`),
        );
        $("stop").addEventListener("click", async () => {
            try {
                tell((await ask("/api/model/cancel", {})).said);
            } catch (problem) {
                tell(message(problem));
            }
        });
        $("evaluate").addEventListener("submit", async event => {
            event.preventDefault();
            const source = $("source").value,
                go = $("evaluate").querySelector("button");
            go.disabled = true;
            $("stop").hidden = false;
            tell(`The server measures the model on ${source} …`);
            try {
                measured = await ask("/api/model/evaluate", {
                    name: asked.get("name"),
                    version: asked.get("version"),
                    source,
                });
                sections("measured-part", measured.measured);
                $("headline").textContent = measured.headline;
                tell(`Measured on ${source}, version ${measured.version}, ${measured.made_at}.`);
                $("stop").hidden = true;
            } catch (problem) {
                tell(message(problem));
                $("stop").hidden = !/in progress/.test(problem.said || "");
            }
            go.disabled = false;
        });
    }

    // --- a run, or several ---------------------------------------------------------------------------------
    let view = null,
        last_news = "",
        live = null,
        results = null;
    function showRun(found) {
        if (found.view) {
            view = found.view;
            have = found.number;
            showView();
        }
        const heads = found.heads || [{ ...found.head, run_id: run }];
        const running = heads.some(h => h.status === "running");
        const leads = run
            ? view.summary.best &&
              `best so far: ${view.summary.best.mst_key} with ${view.summary.best.series} ${show(view.summary.best.value)}`
            : view.best && `best so far: ${view.best.name} with ${view.measure.series} ${show(view.best.value)}`;
        const parts = heads.flatMap(h => [
            ...(compared ? [`run ${h.run_id}: ${h.status}`] : [h.status]),
            h.total || h.status !== "finished" ? `${h.done || 0} of ${h.total || 0} units` : "no new units",
            ...(compared || h.seconds === null ? [] : [clock(h.seconds)]),
        ]);
        $("headline").textContent = [...parts, ...(leads ? [leads] : [])].join(" · ");
        // screen readers read it out on a change, not each second
        const news = [
            ...heads.map(h => h.status),
            ...(leads ? [leads] : []),
            ...(run && view.summary.failed ? [view.summary.failed + " failed"] : []),
        ].join(", ");
        if (news !== last_news) $("told").textContent = last_news = news;
        const oldest = heads.filter(h => h.status === "running").sort((a, b) => b.data_age - a.data_age)[0];
        results = {
            status: oldest ? "running" : "",
            data_age: oldest ? oldest.data_age : 0,
            at: performance.now(),
            ticks: true,
        };
        showAge();
        if (!run) return running ? 1000 : 5000;
        const [head] = heads;
        live = {
            status: head.status,
            done: head.done,
            total: head.total,
            left: head.seconds_left,
            seconds: head.seconds,
            age: head.age,
            data_age: head.data_age,
            error: head.error,
            at: performance.now(),
            ticks: true,
            keras: head.status === "finished" ? kerasLink : null,
        };
        strip($("strip"), view, live);
        keepingFocus(() => fill("own-note", [head.note, head.tags], ([note, tags]) => notes.shown(run, note, tags)));
        $("error").textContent = head.error && head.status !== "cancelled" ? "Error: " + head.error : head.error || "";
        $("error").className = head.status === "cancelled" ? "note" : "error";
        $("cancel").hidden = $("set-sessions").hidden = !running;
        $("resume").hidden = running || head.status === "finished";
        return view.pending ? 400 : running ? 1000 : 5000;
    }
    // the clock goes on between two answers
    setInterval(() => {
        if (live) tick($("strip"), live);
        if (results) showAge();
    }, 1000);
    function showAge() {
        const text = aged(results);
        if ($("board-age").textContent !== text) $("board-age").textContent = text;
    }
    function kerasLink(key) {
        const made = button(".keras", async () => download(`/api/run/${run}`, `model.keras?mst_key=${key}`), {
            class: "copy",
            "aria-label": `configuration ${key} as a .keras file`,
        });
        return made;
    }
    function showView() {
        $("title").textContent = document.title = run
            ? `Run ${run}: ${view.run.model_output_table}`
            : "Comparison of runs";
        for (const section of document.querySelectorAll(".one")) if (compared) section.hidden = true;
        filters.show(view);
        showColumns();
        showBoard();
        for (const panel of document.querySelectorAll("[data-needs]"))
            needed(panel, view[panel.dataset.needs].length > 0);
        update(view);
        for (const note of document.querySelectorAll("[data-sampled]")) {
            const how = view.sampled[note.dataset.sampled];
            note.textContent = how ? `Sampled: ${how}.` : "";
        }
        if (compared) {
            fill("differences", view.differences, rows => [
                plainTable(
                    ["", ...asked.getAll("run").map(id => `run ${id}`)],
                    rows.map(row => row.map(value => (value === null ? value : show(value)))),
                    "What differs between the runs",
                ),
            ]);
            return;
        }
        failures($("causes"), view, view.failed);
        next($("steps"), view, submitting.buttons);
        const gpus = view.time.some(t => (t.gpu ?? null) !== null);
        fill("time", [view.time, view.makespan], ([time]) =>
            time.length
                ? [
                      plainTable(
                          [
                              "activity",
                              "units",
                              "seconds",
                              "trainer at work",
                              "its processors",
                              ...(gpus ? ["utilization of its GPU"] : []),
                              "reading",
                              "writing",
                          ],
                          time.map(t => [
                              t.what,
                              t.units,
                              t.seconds,
                              t.compute,
                              t.cpu,
                              ...(gpus ? [t.gpu] : []),
                              t.read,
                              t.write,
                          ]),
                          "Where the sessions' time went",
                      ),
                  ]
                : [],
        );
        fill("failed-units", view.failed_units, units =>
            units.length
                ? [
                      el(
                          "details",
                          {},
                          el("summary", {}, `${units.length} failed units`),
                          plainTable(
                              ["mst_key", "iteration", "segment", "kind", "attempt", "error"],
                              units.map(u => [u.mst_key, u.iteration, u.segment, u.kind, u.attempt, u.error]),
                              "Failed units (units of a lost session or trainer are tried again)",
                          ),
                      ),
                  ]
                : [],
        );
        const {
            run_id,
            status,
            error,
            seconds: _,
            state_bytes,
            finished_at,
            merge_rate,
            predicted_seconds,
            ...facts
        } = view.run;
        fill("settings", [facts, view.fixed, view.settings], () => [
            pairs(facts),
            ...[
                ["Parameters common to all configurations", view.fixed],
                ["Settings of the call", view.settings],
            ].flatMap(([title, given]) => (Object.keys(given).length ? [el("h3", {}, title), pairs(given)] : [])),
        ]);
        fill("repeat", view.sql, sql => [
            el("pre", { tabindex: "0" }, el("code", {}, sql || "-- the arguments are shown to the run's owner alone")),
        ]);
    }

    // --- tabs ----------------------------------------------------------------------------------------------
    const asking = { plan: () => showPlan(), data: () => showData() };
    function tabs() {
        const panels = [...document.querySelectorAll("[role=tabpanel]")],
            list = $("tabs");
        const wanted = () => panels.find(p => p.id === "tab-" + asked.get("tab") && !p.dataset.needs) || panels[0];
        function choose(panel) {
            for (const own of panels) {
                const is = own === panel,
                    tab = $("of-" + own.id);
                own.hidden = !is;
                tab.setAttribute("aria-selected", String(is));
                tab.tabIndex = is ? 0 : -1;
            }
            asking[panel.id.slice(4)]?.();
            redraw();
        }
        for (const panel of panels) {
            const tab = button(
                panel.dataset.tab,
                () => {
                    asked.set("tab", panel.id.slice(4));
                    history.replaceState(null, "", where());
                    choose(panel);
                },
                { role: "tab", id: "of-" + panel.id, "aria-controls": panel.id },
            );
            panel.setAttribute("aria-labelledby", tab.id);
            tab.hidden = !!panel.dataset.needs;
            list.append(tab);
        }
        list.addEventListener("keydown", event => {
            const all = [...list.children].filter(tab => !tab.hidden),
                step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
            if (!step) return;
            const to = all[(all.indexOf(document.activeElement) + step + all.length) % all.length];
            to.click();
            to.focus();
            event.preventDefault();
        });
        choose(wanted());
    }
    // a tab that has something to show only in some runs
    function needed(panel, has) {
        const tab = $("of-" + panel.id);
        if (!tab || tab.hidden === !has) return;
        tab.hidden = !has;
        if (has && asked.get("tab") === panel.id.slice(4)) tab.click();
    }
    async function askInto(id, path, make) {
        try {
            const found = await ask(path);
            fill(id, found, make);
        } catch (problem) {
            fill(id, message(problem), text => [el("p", { class: "note" }, text)]);
        }
    }
    function showPlan() {
        askInto("plan", `/api/run/${run}/plan`, found => [el("pre", { tabindex: "0" }, el("code", {}, found.text))]);
    }
    function showData() {
        askInto("data-facts", `/api/run/${run}/data`, found =>
            found.tables.map(t =>
                el(
                    "div",
                    {},
                    el("h3", {}, `${t.role}: ${t.name}`),
                    ...(t.columns?.length ? [parts.columns(t)] : []),
                    t.facts
                        ? pairs(t.facts)
                        : el("p", { class: "note" }, "Its summary is gone, or your role may not read it."),
                ),
            ),
        );
    }
    // on request: how far the rows of the run's source are, now, from those that were packed
    async function showDrift() {
        $("drift").disabled = true;
        $("drift-stop").hidden = false;
        $("drift-said").textContent = "The server reads the rows …";
        try {
            const found = await ask(`/api/run/${run}/drift`, {});
            $("drift-rows").replaceChildren(parts.drift(found));
            $("drift-said").textContent =
                `${found.rows.filter(r => r.verdict === "drifted").length} of ${found.rows.length} columns have drifted.`;
        } catch (problem) {
            $("drift-said").textContent = message(problem);
        }
        $("drift").disabled = false;
        $("drift-stop").hidden = !/in progress/.test($("drift-said").textContent);
    }

    // the few columns that are shown at first: of the parameters, the first ones
    const FEW = 3;
    function shownColumns() {
        const given = asked.getAll("column"),
            names = view.columns.map(c => c.name);
        if (given.length) return names.filter(n => given.includes(n));
        const first = view.varied.slice(0, compared ? FEW + 2 : FEW);
        return names.filter(
            n => ["rank", "mst_key", "status", view.measure.series, "iterations"].includes(n) || first.includes(n),
        );
    }
    function showColumns() {
        fill("columns", [view.columns.map(c => c.name), shownColumns()], ([names, shown]) =>
            names.map(name => {
                const box = el("input", { type: "checkbox", "data-focus": "column" + name });
                box.checked = shown.includes(name);
                box.addEventListener("change", () => {
                    const now = box.checked ? [...shownColumns(), name] : shownColumns().filter(n => n !== name);
                    asked.delete("column");
                    for (const own of now) asked.append("column", own);
                    history.replaceState(null, "", where());
                    keepingFocus(showColumns);
                    showBoard();
                });
                return el("label", {}, box, " " + name);
            }),
        );
    }
    function showBoard() {
        const board = $("board"),
            better = view.measure.goal === "max" ? "more" : "less",
            shown = shownColumns();
        // (the measure comes first of what may be cut off)
        const first = ["rank", "mst_key", view.measure.series],
            own = name => first.indexOf(name) + 1 || first.length + 1;
        const places = view.columns
            .map((c, i) => i)
            .filter(i => shown.includes(view.columns[i].name))
            .sort((a, b) => own(view.columns[a].name) - own(view.columns[b].name) || a - b);
        $("caption").textContent =
            `${view.shown} of ${view.all} configurations, by ${view.measure.series}, ${better} is better; values after the last iteration`;
        keepingFocus(() => {
            const head = places
                .map(i => view.columns[i])
                .map(column => {
                    const made = el(
                        "th",
                        { scope: "col", ...(column.number ? { class: "number" } : {}) },
                        button(
                            column.name,
                            () =>
                                change(() => {
                                    const down = asked.get("sort") === column.name && asked.get("desc") !== "1";
                                    asked.set("sort", column.name);
                                    if (down) asked.set("desc", "1");
                                    else asked.delete("desc");
                                    asked.delete("page");
                                }),
                            { "data-focus": "head" + column.name },
                        ),
                    );
                    if ((asked.get("sort") || "rank") === column.name)
                        made.setAttribute("aria-sort", asked.get("desc") === "1" ? "descending" : "ascending");
                    return made;
                });
            board.tHead.replaceChildren(el("tr", {}, ...head));
            board.tBodies[0].replaceChildren(...view.rows.map((values, i) => boardRow(values, view.keys[i], places)));
        });
        roving(board);
        pages(view.page, view.pages);
    }
    function cut(text) {
        return text.length > 16 ? el("span", { class: "cut", title: text }, text) : text;
    }
    function boardRow(values, key, places) {
        const at = view.columns.findIndex(column => column.name === "status"),
            status = values[at];
        const why = values[view.columns.findIndex(column => column.name === "why it ended")];
        const row = el("tr", { "data-key": key, "data-focus": "row" + key, "aria-selected": String(marked() === key) });
        for (const i of places) {
            const cell = el(
                "td",
                view.columns[i].number ? { class: "number" } : {},
                i === at ? state(status) : cut(values[i] === null ? "" : show(values[i])),
            );
            if (i === at && why && !shownColumns().includes("why it ended"))
                cell.append(" ", el("span", { class: "badge", title: why }, why.split("\n")[0]));
            if (i === at && run && view.run.status === "running" && ["running", "waiting"].includes(status))
                cell.append(
                    button(
                        "stop",
                        event => {
                            event.stopPropagation();
                            act("stop", { mst_key: key }, `Stop configuration ${key}? The others continue.`);
                        },
                        { "aria-label": `stop configuration ${key}`, "data-focus": "stop" + key },
                    ),
                );
            if (run && view.columns[i].name === "mst_key")
                cell.prepend(
                    button(
                        "…",
                        event => {
                            event.stopPropagation();
                            drawer.open(key);
                        },
                        {
                            "aria-label": `details of configuration ${key}`,
                            "data-focus": "details" + key,
                            class: "more",
                        },
                    ),
                );
            row.append(cell);
        }
        row.addEventListener("click", () => mark(key));
        row.addEventListener("keydown", event => {
            if (event.target !== row || (event.key !== "Enter" && event.key !== " ")) return;
            mark(key);
            event.preventDefault();
        });
        return row;
    }

    function begin() {
        filters.begin();
        for (const own of document.querySelectorAll(".picture")) own.after(saves(own.id.replace("-picture", "")));
        $("csv").addEventListener("click", () =>
            download(compared ? "/api/compare" : `/api/run/${run}`, "leaderboard.csv"),
        );
        if (compared) $("html").firstChild.data = "Page as HTML";
        $("html").addEventListener("click", () =>
            compared ? save(seen(), "runs.html") : download(`/api/run/${run}`, "report.html"),
        );
        $("actions").hidden = compared;
        $("cancel").addEventListener("click", () =>
            act("cancel", {}, "Cancel the run? All finished units are kept, and the run can be resumed."),
        );
        $("resume").addEventListener("click", () => act("resume", {}));
        $("set-sessions").addEventListener("submit", event => {
            event.preventDefault();
            act("sessions", { sessions: $("sessions-wanted").valueAsNumber });
        });
        $("weigh").addEventListener("click", weigh);
        $("drift").addEventListener("click", showDrift);
        $("drift-stop").addEventListener("click", async () => {
            try {
                $("drift-said").textContent = (await ask("/api/model/cancel", {})).said;
            } catch (problem) {
                $("drift-said").textContent = message(problem);
            }
        });
        if (compared) $("pareto-title").closest("section").hidden = true; // (that front is one of one run)
        if (!compared) tabs();
        drawer?.first();
    }

    // --- actions -------------------------------------------------------------------------------------------
    async function act(action, given, question) {
        if (question && !confirm(question)) return;
        try {
            say((await ask(`/api/run/${run}/${action}`, given)).said);
        } catch (problem) {
            say(message(problem));
        }
        refresh();
    }
    async function download(of, name) {
        try {
            const answer = await ask(`${of}/${name}${name.includes("?") ? "" : "?" + asked}`, null, answer => answer);
            save(await answer.blob(), /filename="([^"]+)"/.exec(answer.headers.get("content-disposition"))[1]);
        } catch (problem) {
            say(message(problem));
        }
    }
    async function weigh() {
        $("weigh").disabled = true;
        try {
            const { importance, of, iterations } = await ask(`/api/run/${run}/importance?${asked}`);
            $("importance").replaceChildren(
                plainTable(
                    ["parameter", "importance", ""],
                    importance.map(([name, value]) => [
                        name,
                        value,
                        el("meter", { min: 0, max: 1, value, "aria-label": `importance of ${name}` }),
                    ]),
                    `By Optuna, of ${of} configurations with ${iterations} or more iterations`,
                ),
            );
        } catch (problem) {
            $("importance").replaceChildren(
                el("p", { class: "note" }, problem.said || String(problem)),
                ...(problem.hint ? [el("pre", {}, problem.hint)] : []),
            );
        }
        $("weigh").disabled = false;
    }

    if (run || compared) begin();
    else if (model) beginModel();
    else if (!models) lists.beginList();
    refresh();
})();
