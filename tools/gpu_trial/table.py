"""The trial's table, as Markdown, from the results, facts and figures that its steps have written."""

import statistics

from steps import ABOUT, STEPS

PASSED, FAILED, NOT_RUN = "passed", "FAILED", "not run"
FACTS = ("GPU", "machine", "versions", "outside the supported versions", "made by")


def made(results, facts, figures):
    """The text.

    `results`: {step: {"status", "seconds", "said": lines}}; `facts`: {name: text}; `figures`: of benchmarks/on_gpu.py.
    """
    lines = ["# Trial on a GPU", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {cell(facts[name])} |" for name in FACTS if facts.get(name)]
    lines += ["", "| step | | result | seconds | |", "|---|---|---|---|---|"]
    for step in STEPS:
        if step in ABOUT:
            result = results.get(step, {"status": NOT_RUN, "said": ["not asked for"]})
            seconds = f"{result['seconds']:.0f}" if "seconds" in result else "-"
            # (the step look prints what the table's head has, or what is missing)
            told = [line for line in result["said"] if step != "look" or line.startswith("MISSING")]
            said = "; ".join(map(cell, told))
            lines.append(f"| {step} | {ABOUT[step]} | {result['status']} | {seconds} | {said} |")
    for name, workload in figures.items():
        lines += ["", *benchmark(name, workload)]
    return "\n".join(lines) + "\n"


def benchmark(name, workload):
    """The lines of a workload's table."""
    yield f"## {name}"
    yield ""
    yield workload["about"] + (f" (here: {workload['rows']:,} rows)." if "rows" in workload else ".")
    yield ""
    yield "| | whole, s | warm-up, s | training, s | updates a second | updates | median loss | |"
    yield "|---|---|---|---|---|---|---|---|"
    for contender, made in workload["figures"].items():
        losses = [loss for loss in made["losses"] if loss is not None]  # (None: the configuration has failed)
        median = f"{statistics.median(losses):.4g}" if losses else "-"
        yield (
            f"| {contender} | {made['whole']:.2f} | {made['warm-up']:.2f} | {made['train']:.2f} | "
            f"{made['updates'] / made['train']:,.0f} | {made['updates']:,} | {median} | {cell(made['note'])} |"
        )


def cell(text):
    """Text within a cell."""
    return " ".join(str(text).replace("|", "\\|").split())
