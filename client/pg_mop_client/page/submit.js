"use strict";
// A call that trains is submitted as a job: the dialog shows the statement and what mop_explain tells about it first. Users' text
// becomes text, never markup.
window.pgMopSubmit = function ({ ask, say, message, refresh, button }) {
    const { el } = window.pgMopReport;
    const area = el("textarea", { id: "submit-sql", rows: "6", spellcheck: "false" }),
        plan = el("pre", { id: "submit-plan", tabindex: "0", hidden: "" });
    const said = el("p", { role: "status", id: "submit-said" }),
        go = el("button", { id: "submit-go", disabled: "" }, "Submit");
    const form = el(
        "form",
        { id: "submit-form" },
        el("h2", { id: "submit-title" }, "Submit a call"),
        el(
            "label",
            { for: "submit-sql" },
            "One call that trains. The server runs it as a job, with your role's rights, independent of this page.",
        ),
        area,
        said,
        plan,
        el(
            "p",
            { class: "controls" },
            button("Explain", explain, { id: "submit-explain" }),
            go,
            button("Cancel", () => dialog.close()),
        ),
    );
    const dialog = el("dialog", { id: "submit-dialog", "aria-labelledby": "submit-title" }, form);
    document.body.append(dialog);
    let accepted = null; // the text that mop_explain has accepted
    function settle() {
        go.disabled = accepted === null || area.value !== accepted;
    }
    async function explain() {
        const command = area.value;
        said.textContent = "The server plans the call …";
        accepted = null;
        settle();
        try {
            const found = await ask("/api/explain", { command });
            if (area.value === command) accepted = command;
            plan.textContent = found.text;
            said.textContent = "This is what it will do:";
            plan.hidden = false;
        } catch (problem) {
            said.textContent = message(problem);
            plan.hidden = true;
        }
        settle();
    }
    area.addEventListener("input", settle);
    form.addEventListener("submit", async event => {
        event.preventDefault();
        if (go.disabled) return;
        go.disabled = true;
        said.textContent = "The server opens a session …";
        try {
            say((await ask("/api/submit", { command: accepted })).said);
            dialog.close();
            refresh();
        } catch (problem) {
            said.textContent = message(problem);
            settle();
        }
    });
    function open(sql, at_once) {
        area.value = sql;
        plan.hidden = true;
        said.textContent = "";
        accepted = null;
        settle();
        dialog.showModal();
        area.focus();
        if (at_once) explain();
    }
    // a button for each call of a statement: a statement that prepares tables first is copied, and run in psql
    const CALL = /^SELECT [^;']*\.(mop_more|mop_resume|mop_search|mop_train|madlib_keras_fit_multiple_model)\(/;
    function buttons(sql) {
        const calls = sql.split(/;\s*\n(?=SELECT )|;\s*$/).filter(Boolean);
        if (!calls.every(call => CALL.test(call))) return [];
        return calls.map((call, i) =>
            button(calls.length > 1 ? `Submit ${i + 1}` : "Submit …", () => open(call, true), {
                class: "copy",
                "aria-label": "Submit: " + call,
            }),
        );
    }
    return { open, buttons };
};
