"use strict";
// The one filter of a run's page: for the table and all pictures. It is in the address; fields set it, and so do parts of axes.
window.pgMopFilter = function ({ asked, change, filter, where, fill, $ }) {
    const { el, show } = window.pgMopReport;
    const STATES = ["finished", "running", "waiting", "stopped", "failed", "cancelled"],
        SEVERAL = "\u0000several";

    // the fields show what the address has, except the one that somebody fills in now
    function settle() {
        for (const input of document.querySelectorAll("#limits [data-filter]")) {
            const given = asked.getAll(input.dataset.filter);
            if (input === document.activeElement) continue;
            if (input.tagName === "SELECT") {
                [...input.options].find(o => o.value === SEVERAL)?.remove();
                if (given.length > 1) input.append(el("option", { value: SEVERAL, disabled: "" }, given.join(", ")));
                input.value = given.length > 1 ? SEVERAL : given[0] || "";
            } else input.value = given[0] || "";
        }
    }
    function show_(view) {
        $("filtered").textContent = view.shown < view.all ? `– ${view.shown} of ${view.all} configurations` : "";
        // (an update of the run does not change the input fields)
        if (
            fill(
                "limits",
                Object.entries(view.choices).map(([name, of]) => [name, of.words || null]),
                () =>
                    Object.entries(view.choices).map(([name, of]) => {
                        const set = el("fieldset", {}, el("legend", {}, name)),
                            key = "is." + name;
                        if (of.words && of.count > of.words.length) {
                            // (too many to list: a text field accepts any of them)
                            const list = "words-" + name,
                                input = el("input", {
                                    type: "search",
                                    list,
                                    "aria-label": name,
                                    placeholder: `one of ${of.count}`,
                                    "data-filter": key,
                                });
                            input.addEventListener("input", () => filter(key, input.value));
                            set.append(
                                input,
                                el("datalist", { id: list }, ...of.words.map(w => el("option", { value: w }))),
                            );
                        } else if (of.words) {
                            const choose = el(
                                "select",
                                { "aria-label": name, "data-filter": key },
                                el("option", { value: "" }, "all"),
                                ...of.words.map(w => el("option", { value: w }, w)),
                            );
                            choose.addEventListener("change", () => filter(key, choose.value));
                            set.append(choose);
                        } else
                            for (const kind of ["low", "high"]) {
                                const input = el("input", {
                                    type: "number",
                                    step: "any",
                                    "aria-label": `${name}, ${kind === "low" ? "from" : "to"}`,
                                    placeholder: show(of[kind]),
                                    "data-filter": `${kind}.${name}`,
                                });
                                input.addEventListener("input", () => filter(`${kind}.${name}`, input.value));
                                set.append(input, kind === "low" ? " – " : "");
                            }
                        return set;
                    }),
            )
        )
            settle();
    }
    function begin() {
        for (const name of STATES) {
            const box = el("input", { type: "checkbox" });
            box.checked = asked.getAll("state").includes(name);
            box.addEventListener("change", () =>
                change(() => {
                    const states = asked.getAll("state").filter(s => s !== name);
                    asked.delete("state");
                    for (const s of box.checked ? [...states, name] : states) asked.append("state", s);
                    asked.delete("page");
                }),
            );
            $("states").append(el("label", {}, box, " " + name));
        }
        $("best").value = asked.get("best") || "";
        $("best").addEventListener("input", () => filter("best", $("best").value));
        $("filter").addEventListener("submit", event => event.preventDefault());
        $("filter").querySelector("details").open = [...asked.keys()].some(k =>
            /^(state|best|low\.|high\.|is\.)/.test(k),
        );
        $("clear").addEventListener("click", () =>
            change(() => {
                for (const key of Array.from(asked.keys()))
                    if (/^(state$|best$|page$|low\.|high\.|is\.)/.test(key)) asked.delete(key);
                for (const input of $("states").querySelectorAll("input")) input.checked = false;
                $("best").value = "";
                settle();
            }),
        );
        window.pgMopReport.hooks = { limits, limit, axes: () => asked.getAll("axis"), reordered };
    }

    // --- parts of axes -------------------------------------------------------------------------------------
    function limits(name) {
        const number = kind => (asked.has(`${kind}.${name}`) ? +asked.get(`${kind}.${name}`) : undefined);
        const low = number("low"),
            high = number("high"),
            words = asked.getAll("is." + name);
        return words.length ? { words } : low !== undefined || high !== undefined ? { low, high } : null;
    }
    let soon;
    // `given`: {low, high} or {words}; null: all. The page asks for the rows when nobody moves a limit any more.
    function limit(name, given) {
        for (const kind of ["low", "high", "is"]) asked.delete(`${kind}.${name}`);
        if (given?.words) for (const word of given.words) asked.append("is." + name, word);
        else if (given) {
            asked.set("low." + name, given.low);
            asked.set("high." + name, given.high);
        }
        asked.delete("page");
        settle();
        clearTimeout(soon);
        soon = setTimeout(() => change(() => {}), 200);
    }
    function reordered(names) {
        asked.delete("axis");
        for (const name of names) asked.append("axis", name);
        history.replaceState(null, "", where());
    }
    return { show: show_, begin };
};
