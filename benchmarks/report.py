"""Tables of the benchmark: `python report.py` writes docs/benchmarks.md from .local/bench/results.json.

The page keeps the sections of workloads that results.json lacks.
"""

import json
import pathlib
import re

from losses import TWINS
from workloads import WORKLOADS

ROOT = pathlib.Path(__file__).resolve().parent.parent

STUDIES = """
## search

Searches of spaces of learning rate and batch size sequences with common beginnings, with SGD and momentum 0.9. Seconds are
the time of a whole process, as above. All contenders try the same configurations in the same order, from the same initial
weights. All evaluate on 1,000 separate rows, at each comparison of trials and at the end.

- **pg_mop**: fit_multiple for grid search, else mop_search. **Without sharing**: with `pg_mop.sharing = off`. Only in `eight`
  can a call reuse the training of an earlier call (`pg_mop.reuse`); **without reuse**, it trains everything itself.
- **Ray Tune**: ASHAScheduler, also for successive halving. (Ray's HyperBandScheduler with one bracket of all trials gives up
  the actor of a paused trial, and takes far longer.) Actors are reused, with their compiled models, so that no trial compiles
  again. `Model.fit` runs to the next rung, or to the next change of the batch size; a callback sets the learning rate.
- **Optuna**: a process for each worker, which trains in the same way; a journal file; SuccessiveHalvingPruner, an
  asynchronous procedure, for both procedures.

ASHA in Ray and Optuna stops a trial for good; ASHA in pg_mop pauses the trial. Therefore the numbers of trained iterations
differ. In `grid-2`, `grid-3` and `eight`, all contenders train with the kernel `loop`, so that only the amount of work
differs; elsewhere pg_mop chooses the kernel by default. Session-seconds are read + train + write of units. A trainer's first
unit also compiles, and waits for the import of Keras.
"""

EXPLAIN = """
## explain

`mop_explain` predicts the makespan of a call, from the first unit to the last. The call runs right afterwards.
**guess**: fork server, compiled code and cost history are removed before. **measure**: the same, with `measure => TRUE`; the
trainer that has measured is then ready. **history**: after the run before, with its trainers. Memory is that of the largest
process.
"""

OLDER = "\nAn older table, of an earlier version.\n"


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
    for by in dict.fromkeys(r["by"] for r in figures["rows"]):
        own = [r for r in figures["rows"] if r["by"] == by]
        errors = sorted(max(r["actual"] / r["expected"], r["expected"] / r["actual"]) for r in own)
        held = sum(r["low"] <= r["actual"] <= r["high"] for r in own)
        lines.append(
            f"\nBy {by}: wrong by a factor of {errors[len(errors) // 2]:.2f} in the median and of {errors[-1]:.2f} at most; "
            f"the range holds {held} of {len(own)}."
        )
    lines += [f"\n{text[0].upper()}{text[1:]}: {seconds:.2f}." for text, seconds in figures["planning"].items()]
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


def page(results):
    """The text of docs/benchmarks.md."""
    m = results["machine"]
    titles = {t.lower(): t for t in ("Python", "PostgreSQL", "Keras", "TensorFlow", "Ray", "JAX", "scikit-learn")}
    titles["torch"] = "PyTorch"
    versions = ", ".join(f"{title} {m[name]}" for name, title in titles.items() if name in m)
    text = f"""# Benchmarks

This page compares pg_mop with other ways of model selection, on one machine:

| | |
|---|---|
| made by | `make bench`, {m["date"]} |
| machine | {m["cores"]} cores of {m["processor"]}, {m["memory_gb"]} GiB |
| workers | {m["workers"]}, one thread each |
| versions | {versions} |

Every figure but those of "arithmetic alone" is the time of a whole process, from the raw table in the database to the final
training losses. Trainers and the processes of the other contenders start cold, so the figures include the import of a
framework (of TensorFlow and Keras: 2 to 3 s). Keras imports scikit-learn and SciPy if it finds them, as on this machine.
pg_mop's trainers do not import them, which saves 0.8 s. All trainers and processes have one thread each. All contenders
start from the same initial weights and take the rows in a fixed order, without shuffling. The column "updates" counts their
optimizer steps (MADlib's way makes more steps where a buffer ends in a short batch). All contenders evaluate the final loss
on all rows, in batches of 1,024.

- **pg_mop**: packs the table, loads architectures and the selection table, and makes one call. All settings have their defaults
  except for one thread for each trainer and a seed. Fork server, compiled code and cost history are removed before, as on a
  new server.
- **pg_mop, second client**: the same in another session right after the first. It leases the trainers of the first from the
  pool, with their compiled nets; the rows are packed anew, and so are sent anew.
- **pg_mop on JAX**, **on PyTorch**, where these are installed: a first client with that `pg_mop.keras_backend`.
- **export and loop**: COPY of the table to files, then a plain Keras process per worker; each process trains whole
  configurations with `Model.fit` on all rows.
- **PyTorch, a plain loop**, where it is installed: the same export, a process per worker; each process trains whole
  configurations batch by batch, as PyTorch's users write it (`zero_grad`, `backward`, `step`).
- **scikit-learn**: the same export, then GridSearchCV over MLPClassifier, with a process of joblib per worker. It has the
  workload's batches, passes, optimizers and learning rates, without L2 regularization and early stopping. It trains dense nets
  with a single hidden activation; the other workloads name it as not comparable. Keras' SGD and Adam are scikit-learn's
  `sgd` without Nesterov's momentum, and `adam` with an epsilon of 1e-7.
- **Ray Tune**: the same export, a Keras trial for each configuration, with reused actors.
- **MADlib's way**: pg_mop's emulation of MADlib: rounds in lockstep, a model built and compiled at every visit, `Model.fit` on
  each buffer, rows cached after the first visit.
- **arithmetic alone**: no contender, but a measure for all of them: how near is each to what the processors can do? A warm
  process per worker holds the rows and compiled code and trains all configurations, the longest first. The figure is the time
  of that alone, in a second pass: nothing is imported, read, compiled, evaluated or written. Each process uses the fastest of
  pg_mop's kernels `loop` and `xla` on TensorFlow and, for dense nets, a loop in JAX without metrics. It trains one model at a
  time, on all layers. So a contender can be faster that needs less arithmetic: pg_mop on JAX trains several models at once
  (`vmap`), and in `transfer`, pg_mop computes the layers that are not trained once.

"Of all" is the memory of all processes that began within a run; shared memory counts once (proportional set size). "Bytes
written" counts the bytes that all processes, including the server's, sent to the disk, with a checkpoint at the end.

The losses are compared with those of export and loop, which are Keras' own. Contenders with the same batches may differ by
rounding alone: by 1e-6 + 0.001 x the loss (with Adam 0.005 x, since it makes whole steps of gradients that are 0 but for
rounding) + 30 x what rounding has moved it. For the last term, "arithmetic alone" trains each
configuration at least three more times, from weights with relative errors of up to 1e-6. (High learning rates multiply such
errors until rounding alone decides on the loss; the text below a table counts these configurations.) A larger difference ends
the benchmark with an error, unless its code states the reason: pg_mop and MADlib's way train other batches, because they
shuffle the rows when they pack them, and in pg_mop a model visits the segments in the scheduler's order; PyTorch's Adam adds
epsilon at another place than Keras'.
"""
    for name, workload in results["workloads"].items():
        text += f"\n## {name}\n\n{workload['about']}. {median_of(workload['runs'])}\n\n{table(workload)}\n"
    if results.get("studies"):
        text += STUDIES
    for name, study in results.get("studies", {}).items():
        text += f"\n### {name}\n\n{study['about']}. {median_of(study['runs'])}\n\n{study_table(study)}\n"
    if results.get("explain"):
        text += f"{EXPLAIN}\n{explained_table(results['explain'])}\n"
    for name, figures in results.get("parts", {}).items():
        text += f"\n## {name}\n\n| | |\n|---|---|\n" + "".join(
            f"| {key} | {f'{value:,.0f}' if value >= 1000 else f'{value:.4g}'} |\n" for key, value in figures.items()
        )
    return text


def with_older(text, before):
    """The page `text`, with the sections that only the page `before` has, in their places, marked as older."""
    head, *sections = re.split(r"\n(?=## )", text)
    made = {section.partition("\n")[0]: section for section in sections}
    for section in re.split(r"\n(?=## )", before)[1:]:
        title, _, rest = section.partition("\n")
        if title not in made:
            about, _, figures = rest.strip("\n").partition("\n\n")
            if OLDER.strip() != figures.partition("\n\n")[0]:
                section = f"{title}\n\n{about}\n{OLDER}\n{figures}\n"
            made[title] = section
    order = [f"## {name}" for name in (*WORKLOADS, "search")]
    titles = sorted(made, key=lambda title: order.index(title) if title in order else len(order))
    return "\n".join([head, *(made[title].rstrip("\n") + "\n" for title in titles)])


if __name__ == "__main__":
    results = json.loads((ROOT / ".local" / "bench" / "results.json").read_text())
    place = ROOT / "docs" / "benchmarks.md"
    place.write_text(with_older(page(results), place.read_text() if place.exists() else ""))
