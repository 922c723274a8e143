"""Tables of the benchmark's figures; `python report.py` makes docs/benchmarks.md from .local/bench/results.json."""

import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent


def table(figures):
    """A Markdown table: a line for each contender."""
    lines = ["| | seconds (median) | all runs | against pg_mop | peak memory of the largest process | bytes written | "
             "updates | final losses |", "|---|---|---|---|---|---|---|---|"]
    base = figures.get("pg_mop", {}).get("seconds")
    for name, f in figures.items():
        ratio = f"{f['seconds'] / base:.2f} x" if base else "-"
        losses = " ".join(f"{loss:.4g}" for loss in f["losses"])
        lines.append(f"| {name} | {f['seconds']:.2f} | {', '.join(f'{s:.2f}' for s in f['all_seconds'])} | {ratio} | "
                     f"{f['peak_bytes'] / 2**20:.0f} MiB | {f['written_bytes'] / 2**20:.1f} MiB | {f['updates']:,} | "
                     f"{losses} |")
    for name, f in figures.items():
        lines.append(f"\n{name}: " + ", ".join(f"{part} {seconds:.2f} s" for part, seconds in f["parts"].items()) + ".")
    return "\n".join(lines)


def page(results):
    """docs/benchmarks.md."""
    m = results["machine"]
    versions = ", ".join(f"{title} {m[title.lower()]}"
                         for title in ("Python", "PostgreSQL", "Keras", "TensorFlow", "Ray"))
    text = f"""# Benchmarks

What model selection takes with pg_mop, and with what people do instead, on one machine:

| | |
|---|---|
| made by | `make bench`, {m['date']} |
| machine | {m['cores']} cores of {m['processor']}, {m['memory_gb']} GiB |
| workers | {m['workers']}, one thread each |
| versions | {versions} |

Every figure is a whole process, from the raw table in the database to the final training losses, trainers and peers
cold: importing TensorFlow and Keras (2 to 3 s) is in all of them. Where Keras finds scikit-learn and SciPy it imports
them, as here; our trainers do not, which is 0.8 s of that. The peers' processes and our trainers have one thread each.
All start from the same initial weights and take the rows in a fixed order, without shuffling. The updates that each
made are counted (MADlib's way makes more where a buffer ends in a short batch). All evaluate the final loss on all
rows, in batches of 1,024. The losses differ a little: pg_mop's and MADlib's rows were shuffled when they were packed.

- **pg_mop**: packs the table, loads architectures and the selection table, one call, all settings at their defaults
  but one thread for each trainer and a seed.
- **export and loop**: COPY the table out, then a plain Keras process per worker, each training whole configurations
  with `Model.fit` on all rows.
- **Ray Tune**: the same export, a Keras trial for each configuration, actors reused.
- **MADlib's way**: our emulation of it: rounds in lockstep, a model built and compiled at every visit, `Model.fit` on
  each buffer; rows cached after the first visit.

"Bytes written" is what all processes, the server's too, sent to the disk, a checkpoint at the end included.
"""
    for name, workload in results["workloads"].items():
        text += f"\n## {name}\n\n{workload['about']}. Median of {workload['runs']}.\n\n{table(workload['figures'])}\n"
    for name, figures in results.get("parts", {}).items():
        text += f"\n## {name}\n\n| | |\n|---|---|\n" + "".join(
            f"| {key} | {f'{value:,.0f}' if value >= 1000 else f'{value:.4g}'} |\n" for key, value in figures.items())
    return text


if __name__ == "__main__":
    results = json.loads((ROOT / ".local" / "bench" / "results.json").read_text())
    (ROOT / "docs" / "benchmarks.md").write_text(page(results))
