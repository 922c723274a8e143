"use strict";
// Notes and tags of runs, and the dialog that changes them. Users' text becomes text, never markup.
window.pgMopNotes = function ({ ask, say, message, refresh, button }) {
    const { el } = window.pgMopReport;
    const area = el("textarea", { id: "note-text", maxlength: "4000", rows: "5" }),
        tags = el("input", { id: "note-tags", type: "text", maxlength: "1100", autocomplete: "off" });
    const said = el("p", { class: "error", role: "alert", id: "note-said" }),
        title = el("h2", { id: "note-title" });
    const form = el(
        "form",
        { id: "note-form" },
        title,
        el("label", { for: "note-text" }, "Note"),
        area,
        el("label", { for: "note-tags" }, "Tags, with commas between"),
        tags,
        said,
        el(
            "p",
            { class: "controls" },
            el("button", {}, "Save"),
            button("Cancel", () => dialog.close()),
        ),
    );
    const dialog = el("dialog", { id: "note-dialog", "aria-labelledby": "note-title" }, form);
    document.body.append(dialog);
    let run = null;
    // (the list may have made the button anew meanwhile)
    dialog.addEventListener("close", () =>
        [...document.querySelectorAll("[data-focus]")].find(e => e.dataset.focus === "note" + run)?.focus(),
    );
    function open(of, note, own) {
        run = of;
        title.textContent = `Note and tags of run ${run}`;
        area.value = note || "";
        tags.value = (own || []).join(", ");
        said.textContent = "";
        dialog.showModal();
        area.focus();
    }
    form.addEventListener("submit", async event => {
        event.preventDefault();
        try {
            say(
                (
                    await ask(`/api/run/${run}/note`, {
                        note: area.value.trim(),
                        tags: [
                            ...new Set(
                                tags.value
                                    .split(",")
                                    .map(t => t.trim())
                                    .filter(Boolean),
                            ),
                        ],
                    })
                ).said,
            );
            dialog.close();
            refresh();
        } catch (problem) {
            said.textContent = message(problem);
        }
    });
    // what a run has, and the button that opens the dialog
    function shown(of, note, own) {
        return [
            ...(own || []).map(tag => el("span", { class: "tag" }, tag)),
            note ? el("span", { class: "note clip", title: note }, note) : "",
            button(note || own?.length ? "edit" : "add", () => open(of, note, own), {
                class: "copy",
                "aria-label": `note and tags of run ${of}`,
                "data-focus": "note" + of,
            }),
        ];
    }
    return { shown };
};
