"use strict";
// The live page's pictures, and the page itself, as files that need neither the page nor its server. `file`: how their names begin;
// `asked`: the parameters of the address.
window.pgMopFiles = function (file, asked) {
    const { el, drawLate } = window.pgMopReport,
        $ = id => document.getElementById(id);
    function button(text, work, given) {
        const made = el("button", { type: "button", ...given }, text);
        made.addEventListener("click", work);
        return made;
    }

    // --- pictures as files ---------------------------------------------------------------------------------
    const LOOK = [
        "fill",
        "stroke",
        "stroke-width",
        "stroke-opacity",
        "stroke-dasharray",
        "font-size",
        "font-family",
        "paint-order",
        "text-anchor",
    ];
    // (programs that show SVG files may not know mixed colours)
    const plain = text =>
        text.replace(
            /^color\(srgb ([\d.]+) ([\d.]+) ([\d.]+)\)$/,
            (_, ...rgb) => `rgb(${rgb.slice(0, 3).map(v => Math.round(255 * v))})`,
        );
    // the file of a picture has the page's note and legend below the picture
    function below(name, width, top, page) {
        const made = [],
            text = (x, y, words) =>
                el("text", { x, y, fill: page.color, "font-size": "12px", "font-family": page.fontFamily }, words);
        const series = name === "curves" && $("series"),
            title = $(name + "-title").textContent;
        let x = 12,
            y = top + 20;
        made.push(text(x, y, series ? `${title}: ${series.value}${$("log").checked ? ", logarithmic" : ""}` : title));
        y += 20;
        for (const own of $(name + "-picture").querySelectorAll(".legend > *")) {
            const swatch = own.querySelector("i"),
                words = own.textContent,
                long = (swatch ? 20 : 0) + 7 * words.length + 14;
            if (x > 12 && x + long > width) {
                x = 12;
                y += 18;
            }
            if (swatch)
                made.push(
                    el("rect", {
                        x,
                        y: y - 7,
                        width: 14,
                        height: 4,
                        fill: /^rgba\(.*, 0\)$/.test(getComputedStyle(swatch).backgroundColor)
                            ? getComputedStyle(swatch).color
                            : getComputedStyle(swatch).backgroundColor,
                    }),
                );
            made.push(text(x + (swatch ? 20 : 0), y, words));
            x += long;
        }
        return { made, high: y + 8 - top };
    }
    function picture(name) {
        const svg = $(name + "-picture").querySelector("svg");
        if (!svg) return null;
        const copy = svg.cloneNode(true),
            copies = copy.querySelectorAll("*");
        svg.querySelectorAll("*").forEach((own, i) => {
            const style = getComputedStyle(own);
            for (const look of LOOK) copies[i].setAttribute(look, plain(style.getPropertyValue(look)));
            copies[i].removeAttribute("class");
            copies[i].removeAttribute("style");
        });
        const { width, height: drawn } = svg.viewBox.baseVal;
        const told = below(name, width, drawn, getComputedStyle(document.body)),
            height = drawn + told.high;
        copy.append(...told.made);
        copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
        copy.setAttribute("viewBox", `0 0 ${width} ${height}`);
        copy.setAttribute("width", width);
        copy.setAttribute("height", height);
        copy.prepend(el("rect", { width, height, fill: getComputedStyle(document.body).backgroundColor }));
        return {
            width,
            height,
            blob: new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }),
        };
    }
    // The page of several runs as a self-contained file. (The server makes the report of one run.)
    function seen() {
        drawLate();
        const copy = document.documentElement.cloneNode(true),
            head = copy.querySelector("head");
        for (const own of copy.querySelectorAll("th button, .legend button"))
            own.replaceWith(el("span", {}, ...own.childNodes));
        copy.querySelector("#series")?.parentNode.replaceWith(
            el("p", { class: "note" }, $("series").value + ($("log").checked ? ", logarithmic" : "")),
        );
        if ($("filtered")?.textContent)
            copy.querySelector("#headline").append(` ${$("filtered").textContent}: ${asked}`);
        for (const own of copy.querySelectorAll(
            "nav, form, template, script, link, button, .controls:not(.legend), .skip, .hint, [hidden], #connection, #said, [role=tablist], #choose, .one",
        ))
            own.remove();
        for (const row of copy.querySelectorAll("[tabindex], [data-focus]")) {
            row.removeAttribute("tabindex");
            row.removeAttribute("data-focus");
        }
        head.append(
            el(
                "style",
                {},
                [...document.styleSheets]
                    .flatMap(sheet => [...sheet.cssRules])
                    .map(rule => rule.cssText)
                    .join("\n"),
            ),
        );
        return new Blob(["<!DOCTYPE html>\n" + copy.outerHTML], { type: "text/html" });
    }
    function save(blob, name) {
        const link = el("a", { href: URL.createObjectURL(blob), download: name });
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    }
    function saves(name) {
        const title = $(name + "-title").textContent,
            picture_file = file + "_" + name;
        return el(
            "div",
            { class: "controls saves", role: "group", "aria-label": title + " as a file" },
            button(
                "SVG",
                () => {
                    const made = picture(name);
                    if (made) save(made.blob, picture_file + ".svg");
                },
                { "aria-label": title + " as SVG" },
            ),
            button(
                "PNG",
                () => {
                    const made = picture(name),
                        image = new Image();
                    if (!made) return;
                    image.onload = () => {
                        const canvas = el("canvas", { width: made.width * 2, height: made.height * 2 });
                        canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
                        canvas.toBlob(blob => save(blob, picture_file + ".png"));
                        URL.revokeObjectURL(image.src);
                    };
                    image.src = URL.createObjectURL(made.blob);
                },
                { "aria-label": title + " as PNG" },
            ),
        );
    }
    return { save, seen, saves };
};
