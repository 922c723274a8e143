"""Tables of the benchmark. `python report.py` copies .local/bench/results.json into benchmarks/results, one file for each
workload, study and part. It writes docs/benchmarks.md from all files there.
"""

import json
import pathlib
import textwrap

from losses import TWINS
from workloads import WORKLOADS

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEPT = ROOT / "benchmarks" / "results"

HEAD = """# Benchmarks

pg_mop and other ways of model selection on one machine, in seconds: medians of whole processes, from the raw table in the
database to the final training losses. `make bench` measures, keeps the raw figures in `benchmarks/results`, and writes this
page.
"""

CONTENDERS = """
Processes start cold, with one thread each. All contenders start from the same initial weights, take the rows in a fixed order
(pg_mop in that of its packed table), and evaluate the final loss on all rows. A difference of losses that rounding does not
explain ends the benchmark with an error, unless the code states the reason. A contender without a figure was not run on that
date, or cannot train the workload.

"""
ABOUT = {
    "pg_mop": "packs the table, loads architectures and the selection table, and makes one call, on a server without compiled "
    "code and cost history",
    "pg_mop, second client": "the same in another session right after, with the trainers of the pool",
    "pg_mop on JAX": "a first client with that `pg_mop.keras_backend`",
    "pg_mop on PyTorch": "a first client with that `pg_mop.keras_backend`",
    "export and loop": "COPY of the table to files, then a plain Keras process per worker, with `Model.fit` on all rows",
    "PyTorch, a plain loop": "the same export, batch by batch, as PyTorch's users write it",
    "scikit-learn": "the same export, then GridSearchCV over MLPClassifier with the workload's batches, passes, optimizers and "
    "learning rates. It trains dense nets with a single hidden activation",
    "Ray Tune": "the same export, a Keras trial for each configuration, with reused actors",
    "MADlib's way": "pg_mop's emulation of MADlib: rounds in lockstep, a model built and compiled at every visit",
    "arithmetic alone": "no contender, but a measure for all: warm processes that hold the rows and compiled code train all "
    "configurations, by the fastest kernel. Nothing is imported, read, compiled, evaluated or written. A contender that needs "
    "less arithmetic can be faster: `vmap` on JAX, or `transfer`",
}

STUDIES = """
## Searches

Spaces of learning rate and batch size sequences with common beginnings, with SGD and momentum 0.9. All contenders try the same
configurations in the same order, from the same initial weights, and evaluate on 1,000 separate rows. **Without sharing**:
`pg_mop.sharing = off`; **without reuse**: a call trains everything itself. **Ray Tune**: ASHAScheduler with reused actors.
**Optuna**: a process for each worker, SuccessiveHalvingPruner. ASHA in Ray and Optuna stops a trial for good; ASHA in pg_mop
pauses it, so the numbers of trained iterations differ.
"""

EXPLAIN = """
## Predictions

`mop_explain` predicts the makespan of a call, which runs right afterwards. **guess**: without compiled code and cost history.
**measure**: the same, with `measure => TRUE`. **history**: after the run before, with its trainers.
"""

ANSWERS = """
## Answers

A dense net answers: a table of 7,043 customers with nine columns, and one of a million rows with 20. The service (FastAPI)
answers over HTTP on the same machine, by connections that stay open. pandas and Keras is a process that reads the table and
asks the exported file once. The forty connections of pgbench ask one of eight models in each transaction, and share the cores
with it. Medians.
"""


def median_of(runs):
    """A sentence about the number of runs."""
    return f"Medians of {runs} runs." if runs >= 3 else f"A quick look: {runs} run{'s' * (runs > 1)} of each contender."


def table(workload):
    """A Markdown table of a workload's results with a line for each contender, and remarks below it."""
    lines = [
        "| | seconds (median) | all runs | against pg_mop | against arithmetic alone | peak memory of the largest process "
        "| of all | bytes written | updates | final losses |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    figures = workload["figures"]
    base, least = (figures.get(name, {}).get("seconds") for name in ("pg_mop", TWINS))
    for name, f in figures.items():
        ratio = f"{f['seconds'] / base:.2f} x" if base else "-"
        limit = f"{f['seconds'] / least:.2f} x" if least else "-"
        losses = " ".join(f"{loss:.4g}" for loss in f["losses"][:16]) + " ..." * (len(f["losses"]) > 16)
        lines.append(
            f"| {name} | {_seconds(f['seconds'])} | {', '.join(map(_seconds, f['all_seconds']))} | {ratio} | {limit} | "
            f"{_mib(f['peak_bytes'])} | {_mib(f.get('together_bytes'))} | "
            f"{_mib(f['written_bytes'], 1)} | {f['updates']:,} | {losses} |"
        )
    notes = [f"\n{line}" for line in workload.get("losses", ())]
    return "\n".join([*lines, *_absent(workload), *notes, *_parts(figures)])


def study_table(study):
    """A Markdown table of a study's results with a line for each contender, and the gain from sharing."""
    figures = study["figures"]
    lines = [
        "| | seconds (median) | all runs | against pg_mop | iterations trained | best validation loss | "
        "its accuracy | peak memory of the largest process |",
        "|---|---|---|---|---|---|---|---|",
    ]
    base = figures.get("pg_mop", {}).get("seconds")
    for name, f in figures.items():
        ratio = f"{f['seconds'] / base:.2f} x" if base else "-"
        lines.append(
            f"| {name} | {f['seconds']:.2f} | {', '.join(f'{s:.2f}' for s in f['all_seconds'])} | {ratio} | "
            f"{f['trained']:,} | {f['loss']:.4f} | {f['accuracy']:.4f} | {_mib(f['peak_bytes'])} |"
        )
    ours, alone, once = (figures.get(name) for name in ("pg_mop", "pg_mop without sharing", "pg_mop without reuse"))
    if ours:
        lines.append(
            f"\nMerge rate: {ours['merge_rate']:.2f} ({ours['asked']:,} iterations asked for, "
            f"{ours['trained']:,} trained)."
        )
    if ours and alone:
        lines += ["\n| session-seconds | with sharing | without | with x merge rate / without |", "|---|---|---|---|"]
        for part, key in (
            ("all units", "session_seconds"),
            ("train units", "training_seconds"),
            ("train units that compile nothing", "warm_seconds"),
        ):
            lines.append(
                f"| {part} | {ours[key]:.2f} | {alone[key]:.2f} | {ours[key] * ours['merge_rate'] / alone[key]:.2f} |"
            )
    for variant, other in (("without reuse", once), ("without sharing", alone)) if once else ():
        if ours and other:
            rate = ours["merge_rate"] / other["merge_rate"]
            lines.append(
                f"\nAgainst {variant}: {rate:.2f} times fewer iterations; seconds of the calls x this factor / seconds "
                f"{variant}: {ours['parts']['train'] * rate / other['parts']['train']:.2f}."
            )
    return "\n".join([*lines, *_absent(study), *_parts(figures)])


def explained_table(figures):
    """A Markdown table of the makespans that mop_explain predicted, and of the actual ones, with a summary below."""
    lines = [
        "| | by | expected makespan | range | actual | actual / expected | in the range | memory of a trainer: expected | "
        "measured | seconds of mop_explain |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in figures["rows"]:
        held = "yes" if r["low"] <= r["actual"] <= r["high"] else "no"
        lines.append(
            f"| {r['workload']} | {r['by']} | {_seconds(r['expected'])} | {_seconds(r['low'])} to {_seconds(r['high'])} | "
            f"{_seconds(r['actual'])} | {r['actual'] / r['expected']:.2f} | {held} | {_mib(r['memory_expected'])} | "
            f"{_mib(r['memory'])} | {r['seconds']:.2f} |"
        )
    return "\n".join([*lines, "", explained_summary(figures)])


def answers_table(figures):
    """A Markdown table: a line for each measure, a column for each contender."""
    measures = list(dict.fromkeys(measure for own in figures.values() for measure in own))
    lines = [f"| | {' | '.join(figures)} |", "|---" * (len(figures) + 1) + "|"]
    for measure in measures:
        cells = [_of_measure(measure, own[measure]) if measure in own else "-" for own in figures.values()]
        lines.append(f"| {measure} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _of_measure(measure, value):
    if any(word in measure for word in ("answers a second", "MiB", "trainers")):
        return f"{value:,.0f}"
    return f"{value:.2f} s" if value >= 0.5 else f"{1000 * value:.2f} ms"


def explained_summary(figures):
    """How far predictions were off, by where they come from, and the seconds of planning."""
    lines = []
    for by in dict.fromkeys(r["by"] for r in figures["rows"]):
        own = [r for r in figures["rows"] if r["by"] == by]
        errors = sorted(max(r["actual"] / r["expected"], r["expected"] / r["actual"]) for r in own)
        held = sum(r["low"] <= r["actual"] <= r["high"] for r in own)
        lines.append(
            f"- By {by}: wrong by a factor of {errors[len(errors) // 2]:.2f} in the median and of {errors[-1]:.2f} at most; "
            f"the range holds {held} of {len(own)}."
        )
    lines += [f"- {text[0].upper()}{text[1:]}: {seconds:.2f}." for text, seconds in figures["planning"].items()]
    return "\n".join(lines)


def _seconds(seconds):
    return f"{seconds:.2f}" if seconds >= 0.1 else f"{seconds:.4f}"


def _mib(size, digits=0):
    return "-" if size is None else f"{size / 2**20:.{digits}f} MiB"


def _absent(made):
    return [f"\n{contender}: {why}." for contender, why in made.get("absent", {}).items()]


def _parts(figures):
    """The lines below a table: the seconds of each contender's parts, and its notes."""
    lines = []
    for name, f in figures.items():
        parts = [f"{part} {seconds:.2f} s" for part, seconds in f["parts"].items()]
        lines.append(f"\n{name}: {', '.join(parts + f.get('notes', []))}.")
    return lines


def keep(results):
    """Write each section of results.json that is new into its file, with the date and the machine."""
    found = {
        **{name: {"kind": "workload", **made} for name, made in results.get("workloads", {}).items()},
        **{name: {"kind": "study", **made} for name, made in results.get("studies", {}).items()},
        **{name: {"kind": "part", "figures": made} for name, made in results.get("parts", {}).items()},
        **{name: {"kind": name, **results[name]} for name in ("explain", "answers") if results.get(name)},
    }
    for name, section in found.items():
        path = KEPT / f"{name.replace(' ', '-')}.json"
        before = json.loads(path.read_text()) if path.exists() else {}
        if {**before, **section} != before:
            path.write_text(
                json.dumps({**section, "machine": results["machine"], "date": results["machine"]["date"]}, indent=1)
            )


def kept():
    """The sections that benchmarks/results has, by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(KEPT.glob("*.json"))}


def page(sections):
    """The text of docs/benchmarks.md."""
    of = {kind: {n: s for n, s in sections.items() if s["kind"] == kind} for kind in ("workload", "study", "part")}
    workloads = {name: of["workload"][name] for name in WORKLOADS if name in of["workload"]}
    newest = max(workloads.values(), key=lambda section: section["date"])
    text = HEAD + f"\n{_machine(newest['machine'])}\n\n## Workloads\n\n{overview(workloads)}\n{CONTENDERS}"
    run = {name for made in workloads.values() for name in made["figures"]}
    text += "".join(_filled(f"- **{name}**: {about}.") for name, about in ABOUT.items() if name in run)
    if of["study"]:
        text += STUDIES + "".join(
            f"\n### {name}\n\n{made['about']}. {median_of(made['runs'])} {made['date']}.\n\n{study_table(made)}\n"
            for name, made in of["study"].items()
        )
    if "explain" in sections:
        made = sections["explain"]
        text += (
            f"{EXPLAIN}\nMeasured {made['date']} on the workloads and a small search:\n\n{explained_summary(made)}\n"
        )
    if "answers" in sections:
        made = sections["answers"]
        text += f"{ANSWERS}\nMeasured {made['date']}.\n\n{answers_table(made['figures'])}\n"
    if of["part"]:
        text += "\n## Parts\n\n| part | measured | figures |\n|---|---|---|\n" + "".join(
            f"| {name.replace('-', ' ')} | {made['date']} | {'; '.join(map(_figure, made['figures'].items()))} |\n"
            for name, made in of["part"].items()
        )
    return text


def _filled(bullet):
    return textwrap.fill(bullet, 120, subsequent_indent="  ", break_on_hyphens=False) + "\n"


def overview(workloads):
    """One table of all workloads: a row for each, a column of seconds for each contender that any of them has."""
    contenders = list(dict.fromkeys(name for made in workloads.values() for name in made["figures"]))
    contenders.sort(key=lambda name: name == TWINS)
    lines = [
        f"| workload | measured | {' | '.join(contenders)} | memory: pg_mop | export and loop |",
        "|---" * (len(contenders) + 4) + "|",
    ]
    for name, made in workloads.items():
        figures = made["figures"]
        cells = [_seconds(figures[c]["seconds"]) if c in figures else "-" for c in contenders]
        cells += [_mib(figures.get(c, {}).get("together_bytes")) for c in ("pg_mop", "export and loop")]
        few = "" if made["runs"] >= 3 else f" ({made['runs']} run{'s' * (made['runs'] > 1)})"
        lines.append(f"| {name} | {made['date']}{few} | {' | '.join(cells)} |")
    about = [f"- **{name}**: {made['about']}." for name, made in workloads.items()]
    memory = "Memory is that of all processes of a run; shared memory counts once. Rows x columns:"
    return "\n".join([*lines, "", memory, "", *about])


def _machine(m):
    titles = {t.lower(): t for t in ("Python", "PostgreSQL", "Keras", "TensorFlow", "Ray", "JAX", "scikit-learn")}
    titles["torch"] = "PyTorch"
    versions = ", ".join(f"{title} {m[name]}" for name, title in titles.items() if name in m)
    return f"Machine: {m['cores']} cores of {m['processor']}, {m['memory_gb']} GiB; {m['workers']} workers; {versions}."


def _figure(item):
    key, value = item
    return f"{key} {value:,.0f}" if value >= 1000 else f"{key} {value:.3g}"


if __name__ == "__main__":
    new = ROOT / ".local" / "bench" / "results.json"
    if new.exists():
        keep(json.loads(new.read_text()))
    (ROOT / "docs" / "benchmarks.md").write_text(page(kept()))
