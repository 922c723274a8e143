"use strict";
// Axes of parameters and results, which several pictures share: what an axis has, where a value is on it, and what a part of it
// means as a filter. page.js has the tools.
window.pgMopAxes = (function () {
    const TIME = "training seconds",
        FEW = 6,
        RATIO = 50,
        STEPS = 40,
        isNumber = v => typeof v === "number";
    const report = window.pgMopReport,
        seen = new Map(); // name -> all values so far: an axis does not shrink when a filter is set

    const value = (c, name) =>
        name === TIME ? c.seconds : c.last[name] !== undefined ? c.last[name] : c.parameters[name];
    const has = v => v !== undefined && v !== null;
    function see(data) {
        for (const name of [...data.varied, data.measure.series, TIME]) {
            if (!seen.has(name)) seen.set(name, new Set());
            const own = seen.get(name),
                of = data.choices?.[name];
            for (const c of data.configurations) if (has(value(c, name))) own.add(value(c, name));
            if (isNumber(of?.low)) own.add(of.low).add(of.high);
            const at_ = data.varied.indexOf(name) + 1;
            for (const other of data.others || []) if (at_ && has(other[at_])) own.add(other[at_]);
            for (const word of of?.words || []) if (!isNumber([...own][0])) own.add(word);
        }
    }
    // {name, values}, and either `words` or `low`, `high` and `log`; `few`: up to so many different numbers are words
    function axis(name, few = 3) {
        const values = [...(seen.get(name) || [])].sort((a, b) => a - b || String(a).localeCompare(String(b))),
            numeric = values.every(isNumber);
        const continuous = numeric && (name === TIME || report.measure() === name);
        if (!numeric || (values.length <= few && !continuous))
            return { name, values, numeric, words: [...new Set(values.map(String))] };
        const low = values[0],
            high = values[values.length - 1];
        return { name, values, numeric, low, high, log: low > 0 && high / low >= RATIO };
    }
    // a function from a value to its coordinate; of a word, the middle of its band
    function place(axis, from, to) {
        if (axis.words) return v => from + ((axis.words.indexOf(String(v)) + 0.5) / axis.words.length) * (to - from);
        return axis.low === axis.high ? () => (from + to) / 2 : report.scale(axis.low, axis.high, from, to, axis.log);
    }
    // the limits between two coordinates, {low, high} or {words}; null: there is nothing between
    function between(axis, from, to, a, b) {
        const where = place(axis, from, to),
            [least, most] = [Math.min(a, b), Math.max(a, b)];
        const half = axis.words ? Math.abs(to - from) / axis.words.length / 2 : 0;
        return limits(
            axis,
            axis.values.filter(v => where(v) + half >= least && where(v) - half <= most),
        );
    }
    function limits(axis, values) {
        if (!values.length) return null;
        return axis.numeric
            ? { low: values[0], high: values[values.length - 1] }
            : { words: [...new Set(values.map(String))] };
    }
    function told(axis, given) {
        if (!given) return `${axis.name}: all`;
        return given.words
            ? `${axis.name}: ${given.words.join(", ")}`
            : `${axis.name}: from ${report.show(given.low)} to ${report.show(given.high)}`;
    }
    // One end of the limits, moved by a step over the values of the axis: `end` 0 or 1, `step` 1 or -1.
    function moved(axis, given, end, step) {
        const all = axis.numeric ? axis.values : axis.words,
            last = all.length - 1,
            by = Math.max(1, Math.floor(all.length / STEPS));
        const first = given
            ? axis.numeric
                ? [all.findIndex(v => v >= given.low), all.findLastIndex(v => v <= given.high)]
                : [all.indexOf(given.words[0]), all.indexOf(given.words[given.words.length - 1])]
            : [0, last];
        const ends = first.map((at, i) => (at < 0 ? i * last : at));
        ends[end] = Math.min(end ? last : ends[1], Math.max(end ? ends[0] : 0, ends[end] + step * by));
        if (ends[0] === 0 && ends[1] === last) return null;
        return limits(axis, all.slice(ends[0], ends[1] + 1));
    }
    // the coordinates of limits on an axis, or null
    function span(axis, from, to, given) {
        if (!given) return null;
        const where = place(axis, from, to),
            half = axis.words ? (to - from) / axis.words.length / 2 : 0;
        const own = axis.values.filter(v =>
            given.words
                ? given.words.includes(String(v))
                : (given.low === undefined || v >= given.low) && (given.high === undefined || v <= given.high),
        );
        return own.length ? [where(own[0]) - half, where(own[own.length - 1]) + half] : null;
    }
    const cut = (text, most) => (text.length > most ? text.slice(0, Math.max(2, most - 1)) + "…" : text);
    return { TIME, FEW, see, axis, place, between, told, moved, span, value, has, cut, isNumber };
})();
