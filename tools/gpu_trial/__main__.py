"""The command line of tools/gpu_trial.sh, which documents it. Standard library only."""

import pathlib
import sys

import building
import folder
import machine
import running
import steps
import table


def main(arguments):
    """Run the command; the exit status."""
    if arguments[:1] == ["folder"]:
        return folder.make()
    try:
        wanted = steps.parsed(arguments)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    trial = running.Trial()
    if wanted != ["table"]:
        try:
            trial.prepare()
        except running.CannotRun as error:
            print(f"gpu_trial: {error}", file=sys.stderr)
            return 1
    for step in wanted:
        if step == "look":
            trial.record(step, lambda: machine.look(trial))
        elif step == "build":
            trial.record(step, lambda: building.build(trial))
        elif step != "table":
            trial.record(step, lambda step=step: running.run(trial, step))
    results, facts, figures = trial.kept()
    text = table.made(results, facts, figures)
    (trial.place / "table.md").write_text(text)
    print(text)
    return 1 if any(results.get(step, {}).get("status") == table.FAILED for step in wanted) else 0


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    sys.exit(main(sys.argv[1:]))
