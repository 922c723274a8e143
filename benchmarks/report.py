"""Tables of the benchmark's figures; `python report.py` makes docs/benchmarks.md from .local/bench/results.json."""

import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent

STUDIES = """
## search

Searches of spaces of learning rate and batch size sequences with common beginnings; SGD with momentum 0.9. Seconds are
of a whole process as above, also here. All contenders try the same configurations in the same order, from the same
initial weights, and evaluate on 1,000 rows of their own where trials are compared and at the end.

- **pg_mop**: fit_multiple for grid search, else mop_search; **without sharing**: with `pg_mop.sharing = off`. Only in
  `eight` does a call take over what an earlier one has trained (`pg_mop.reuse`; **without reuse** it does not).
- **Ray Tune**: ASHAScheduler, for successive halving, too: its HyperBandScheduler, made to have one bracket of all
  trials, gives actors up where it pauses trials, and takes far longer. Actors are reused, and so is the model that each
  has compiled: no trial compiles anew. `Model.fit` runs to the next rung, or to where the batch size changes; a
  callback sets the learning rate.
- **Optuna**: a process for each worker, which trains in the same way; a journal file; SuccessiveHalvingPruner, which is
  asynchronous, for both procedures.

ASHA as Ray and Optuna have it stops a trial for good where pg_mop's pauses it; so they do not train the same numbers
of iterations. In `grid-2`, `grid-3` and `eight` all train by the kernel `loop`, so that what differs is the work; else
the kernel is chosen as by default. Session-seconds are read + train + write of units; a trainer's first one compiles,
and waits until Keras has been imported.
"""


def table(figures):
    """A Markdown table: a line for each contender."""
    lines = [
        "| | seconds (median) | all runs | against pg_mop | peak memory of the largest process | of all | "
        "bytes written | updates | final losses |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    base = figures.get("pg_mop", {}).get("seconds")
    for name, f in figures.items():
        ratio = f"{f['seconds'] / base:.2f} x" if base else "-"
        losses = " ".join(f"{loss:.4g}" for loss in f["losses"][:16]) + " ..." * (len(f["losses"]) > 16)
        lines.append(
            f"| {name} | {f['seconds']:.2f} | {', '.join(f'{s:.2f}' for s in f['all_seconds'])} | {ratio} | "
            f"{_mib(f['peak_bytes'])} | {_mib(f.get('together_bytes'))} | "
            f"{f['written_bytes'] / 2**20:.1f} MiB | {f['updates']:,} | {losses} |"
        )
    return "\n".join([*lines, *_parts(figures)])


def study_table(figures):
    """A Markdown table of a study: a line for each contender; and what sharing is worth."""
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
        for what, key in (
            ("all units", "session_seconds"),
            ("train units", "training_seconds"),
            ("train units that compile nothing", "warm_seconds"),
        ):
            lines.append(
                f"| {what} | {ours[key]:.2f} | {alone[key]:.2f} | {ours[key] * ours['merge_rate'] / alone[key]:.2f} |"
            )
    for what, other in (("without reuse", once), ("without sharing", alone)) if once else ():
        if ours and other:
            rate = ours["merge_rate"] / other["merge_rate"]
            lines.append(
                f"\nAgainst {what}: {rate:.2f} times fewer iterations; seconds of the calls x that / those "
                f"{what}: {ours['parts']['train'] * rate / other['parts']['train']:.2f}."
            )
    return "\n".join([*lines, *_parts(figures)])


def _mib(size):
    return "-" if size is None else f"{size / 2**20:.0f} MiB"


def _parts(figures):
    return [
        f"\n{name}: " + ", ".join(f"{part} {seconds:.2f} s" for part, seconds in f["parts"].items()) + "."
        for name, f in figures.items()
    ]


def page(results):
    """docs/benchmarks.md."""
    m = results["machine"]
    versions = ", ".join(
        f"{title} {m[title.lower()]}" for title in ("Python", "PostgreSQL", "Keras", "TensorFlow", "Ray")
    )
    text = f"""# Benchmarks

What model selection takes with pg_mop, and with what people do instead, on one machine:

| | |
|---|---|
| made by | `make bench`, {m["date"]} |
| machine | {m["cores"]} cores of {m["processor"]}, {m["memory_gb"]} GiB |
| workers | {m["workers"]}, one thread each |
| versions | {versions} |

Every figure is a whole process, from the raw table in the database to the final training losses, trainers and peers
cold: importing TensorFlow and Keras (2 to 3 s) is in all of them. Where Keras finds scikit-learn and SciPy it imports
them, as here; our trainers do not, which is 0.8 s of that. The peers' processes and our trainers have one thread each.
All start from the same initial weights and take the rows in a fixed order, without shuffling. The updates that each
made are counted (MADlib's way makes more where a buffer ends in a short batch). All evaluate the final loss on all
rows, in batches of 1,024. The losses differ a little: pg_mop's and MADlib's rows were shuffled when they were packed.

- **pg_mop**: packs the table, loads architectures and the selection table, one call, all settings at their defaults
  but one thread for each trainer and a seed.
- **pg_mop, second client**: the same in another session right after it: the fork server lives, what XLA has compiled is
  kept, and what units cost is known. (For **pg_mop** itself all of it is gone, as on a new server.)
- **pg_mop on JAX**, **on PyTorch**, where these are installed: a first client with that `pg_mop.keras_backend`.
- **export and loop**: COPY the table out, then a plain Keras process per worker, each training whole configurations
  with `Model.fit` on all rows.
- **Ray Tune**: the same export, a Keras trial for each configuration, actors reused.
- **MADlib's way**: our emulation of it: rounds in lockstep, a model built and compiled at every visit, `Model.fit` on
  each buffer; rows cached after the first visit.

Memory of all is that of the processes that began within a run, what they share counted once (proportional set size).
"Bytes written" is what all processes, the server's too, sent to the disk, a checkpoint at the end included.
"""
    for name, workload in results["workloads"].items():
        text += f"\n## {name}\n\n{workload['about']}. Median of {workload['runs']}.\n\n{table(workload['figures'])}\n"
    if results.get("studies"):
        text += STUDIES
    for name, study in results.get("studies", {}).items():
        text += f"\n### {name}\n\n{study['about']}. Median of {study['runs']}.\n\n{study_table(study['figures'])}\n"
    for name, figures in results.get("parts", {}).items():
        text += f"\n## {name}\n\n| | |\n|---|---|\n" + "".join(
            f"| {key} | {f'{value:,.0f}' if value >= 1000 else f'{value:.4g}'} |\n" for key, value in figures.items()
        )
    return text


if __name__ == "__main__":
    results = json.loads((ROOT / ".local" / "bench" / "results.json").read_text())
    (ROOT / "docs" / "benchmarks.md").write_text(page(results))
