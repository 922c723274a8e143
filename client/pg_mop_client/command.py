"""The command `mop`: runs, jobs, watch, report, dashboard, tensorboard."""

import argparse
import importlib.metadata
import io
import re
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

import pandas
import sqlalchemy
from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pg_mop_client.database import connected, find_extension, make_engine, plain, quote
from pg_mop_client.errors import ClientError, needed
from pg_mop_client.run import written
from pg_mop_client.selection import Selection
from pg_mop_client.watching import Look, Watcher, duration, printable

# widths in characters: of a list in a file; of a column in a terminal, at most; of a column that the window cuts off
MOST_WIDE, MOST_WIDE_COLUMN, LEAST_WIDE_COLUMN = 10_000, 60, 24
# columns of a list, from left to right; a narrow window shows only the first ones
COLUMNS = (
    "run_id",
    "status",
    "model_output_table",
    "configurations",
    "started_at",
    "finished_at",
    "function",
    "num_iterations",
)
JOB_COLUMNS = ("job", "status", "submitted_at", "said", "command", "runs", "finished_at")


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute a command line. Returns the exit status."""
    given = _parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):  # (the locale's encoding may lack characters of names)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        return given.work(given) or 0
    except (ClientError, OSError) as error:
        print(f"mop: {printable(error)}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 1


class _Parser(argparse.ArgumentParser):
    """A parser that hides passwords in its errors: a shell splits unquoted connection parameters into arguments."""

    def error(self, message: str) -> NoReturn:
        if re.search(r"=|://", message):
            message = (
                "an argument has = or ://, and is not shown; a connection's parameters are one argument, in "
                "quotes: -d 'host=... dbname=...'"
            )
        super().error(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="mop",
        description="Show pg_mop's runs. The command connects as psql does: by PGHOST, PGSERVICE and so on, or by -d.",
    )
    parser.add_argument("-d", "--dsn", default="", help="a URI, or 'host=... dbname=...'")
    parser.add_argument("--schema", help="the extension's schema; by default the command finds it")
    parser.add_argument("--version", action="version", version=importlib.metadata.version("pg_mop_client"))
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    runs = commands.add_parser("runs", help="list your runs, the latest first")
    runs.add_argument("-n", type=_count, default=20, help="how many (20)")
    runs.set_defaults(work=_runs)
    jobs = commands.add_parser("jobs", help="list your jobs (mop_submit), the latest first; or show one job's messages")
    jobs.add_argument("job", type=int, nargs="?", help="the number of the job")
    jobs.add_argument("-n", type=_count, default=20, help="how many (20)")
    jobs.set_defaults(work=_jobs)
    watch = commands.add_parser("watch", help="watch a run until it ends")
    watch.add_argument("run", type=int, nargs="?", help="the number of the run (the latest running run)")
    watch.set_defaults(work=_watch)
    report = commands.add_parser("report", help="write a run, or a named model, as one HTML file")
    report.add_argument("run", type=int, nargs="?", help="the number of the run")
    report.add_argument("--model", help="a named model instead of a run")
    report.add_argument("--on", metavar="TABLE", help="a table, view or query whose rows measure the model")
    report.add_argument("--version", type=_count, dest="of_version", help="the model's version (the one in use)")
    report.add_argument(
        "-o", "--output", help="the file (run_<number>.html, <model>.html); - writes to the standard output"
    )
    report.set_defaults(work=_report)
    dashboard = commands.add_parser("dashboard", help="show your runs in a browser, with live updates")
    dashboard.add_argument("--port", type=int, default=0, help="a port of 127.0.0.1 (any free port)")
    dashboard.add_argument("--no-browser", action="store_true", help="open no browser; print the address")
    dashboard.set_defaults(work=_dashboard)
    board = commands.add_parser("tensorboard", help="write TensorBoard's event files of a run")
    board.add_argument("run", type=int)
    board.add_argument("directory")
    board.set_defaults(work=_tensorboard)
    return parser


def _count(text: str) -> int:
    if not text.strip().isdecimal() or not 1 <= int(text) < 1 << 31:
        raise argparse.ArgumentTypeError(f"must be a number from 1, not {text}")
    return int(text)


def _runs(given: argparse.Namespace) -> None:
    with Selection(given.dsn, given.schema) as selection:
        found = selection.query(
            f"SELECT * FROM {plain(quote(selection.schema))}.mop_runs ORDER BY run_id DESC LIMIT :most",
            cap=None,
            most=given.n,
        )
    _list(found, COLUMNS, "no runs yet")


def _jobs(given: argparse.Namespace) -> int:
    with Selection(given.dsn, given.schema) as selection:
        view = f"{plain(quote(selection.schema))}.mop_jobs"
        if given.job is None:
            # (the part of the command and of the error that fits a line, or the latest message)
            found = selection.query(
                f"SELECT job, status, CAST(runs AS text) AS runs, submitted_at, finished_at, "
                f"left(regexp_replace(command, '\\s+', ' ', 'g'), 60) AS command, "
                f"split_part(coalesce(error, messages[cardinality(messages)], ''), chr(10), 1) AS said "
                f"FROM {view} ORDER BY job DESC LIMIT :most",
                cap=None,
                most=given.n,
            )
            _list(found, JOB_COLUMNS, "no jobs yet")
            return 0
        found = selection.query(f"SELECT * FROM {view} WHERE job = :job", job=given.job)
    if found.empty:
        raise ClientError(f"there is no job {given.job} that the role may see", hint="mop jobs")
    job, console = found.iloc[0], Console()
    console.print(Text(f"job {job.job}  {job.status}", style="bold"))
    for line in (job.command, *job.messages, *([f"error: {job.error}"] if job.error else [])):
        console.print(Text(printable(line)))
    return 0 if job.status in ("finished", "running") else 1


def _list(found: pandas.DataFrame, columns: Sequence[str], otherwise: str) -> None:
    """Print the given columns of a DataFrame, as many as fit the terminal; `otherwise` if it has no rows."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=MOST_WIDE)
    if not len(found):
        console.print(otherwise)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    shown: list[list[str]] = []
    width = 0
    for name in columns:
        cells = [
            ""
            if value is None or value != value
            else value.strftime("%Y-%m-%d %H:%M:%S")
            if hasattr(value, "strftime")
            else printable(value).replace("\n", " ")
            for value in found[name]
        ]
        wide, room = max(map(cell_len, [name, *cells])), console.width - width
        if shown and room < min(wide, LEAST_WIDE_COLUMN):
            break
        table.add_column(
            name.replace("_", " "),
            no_wrap=True,
            max_width=min(MOST_WIDE_COLUMN, max(room, 1)) if console.is_terminal else None,
        )
        width += 2 + min(wide, MOST_WIDE_COLUMN)
        shown.append(cells)
    for row in zip(*shown):
        table.add_row(*map(Text, row))
    console.print(table)
    if left := columns[len(shown) :]:
        console.print(Text(f"in a wider window also: {', '.join(left).replace('_', ' ')}", style="dim"))


def _report(given: argparse.Namespace) -> None:
    if (given.run is None) == (given.model is None):
        raise ClientError(
            "mop report takes the number of a run, or --model", hint="mop report 7; mop report --model churn"
        )
    if given.model is None and (given.on is not None or given.of_version is not None):
        raise ClientError("--on and --version are for --model", hint="mop report --model churn --on churn_test")
    with Selection(given.dsn, given.schema) as selection:
        if given.model is None:
            page, name = selection.run(given.run).report(), f"run_{given.run}"
        else:
            page = selection.model(given.model, given.of_version).report(given.on)
            name = re.sub(r"[^\w.-]+", "_", given.model).strip("._") or "model"
    if given.output == "-":
        sys.stdout.write(page)
    else:
        print(written(page, given.output or f"{name}.html"))


def _tensorboard(given: argparse.Namespace) -> None:
    with Selection(given.dsn, given.schema) as selection:
        print(selection.run(given.run).to_tensorboard(given.directory))


def _dashboard(given: argparse.Namespace) -> None:
    for module in ("starlette", "uvicorn"):
        needed(module, "dashboard")
    from pg_mop_client.serving import serve

    if not 0 <= given.port < 1 << 16:
        raise ClientError(f"--port must be from 0 to 65535, not {given.port}")
    serve(*_found(given), given.port, not given.no_browser)


def _found(given: argparse.Namespace) -> tuple[sqlalchemy.Engine, str]:
    """The engine and the extension's schema."""
    engine = make_engine(given.dsn)
    with connected(engine) as connection:
        return engine, find_extension(connection, given.schema)


def _watch(given: argparse.Namespace) -> int:
    return watch(Watcher(*_found(given)), given.run, Console())


def watch(watcher: Watcher, run_id: int | None, console: Console) -> int:
    """Show a run on the console until it ends. Returns 0 if the run has finished, else 1.

    `run_id` None: the latest running run. Raises ClientError if the role sees no such run.
    """
    run_id = watcher.latest() if run_id is None else run_id
    look = watcher.look(run_id, sessions=True, summary=True) if run_id is not None else None
    if look is None or run_id is None:
        raise ClientError(
            f"there is no run {run_id} that the role may see" if run_id else "the role has no runs", hint="mop runs"
        )
    try:
        with Live(_screen(look, watcher, console), console=console, auto_refresh=False) as live:
            printed = None
            while look.run.status == "running":
                time.sleep(watcher.rest)
                was_connected = watcher.is_connected
                now = watcher.look(run_id, sessions=True, summary=True)
                if now is None and watcher.is_connected:
                    raise ClientError(f"run {run_id} has been dropped")
                if was_connected != watcher.is_connected:  # on a separate line that stays
                    console.print(
                        "connected again"
                        if watcher.is_connected
                        else "the connection is lost: trying again; the run does not depend on it"
                    )
                look = now or look
                live.update(_screen(look, watcher, console), refresh=True)
                if not console.is_terminal and printed != (printed := look.units_done):  # a file gets lines instead
                    console.print(f"{look.units_done} of {look.units_total} units, {look.summary}")
    finally:
        watcher.close()
    if not console.is_terminal:
        console.print()  # (ends the last line of the screen)
    if look.run.error:
        console.print(Text(f"error: {printable(look.run.error)}"))
    _print_end(look, console)
    return 0 if look.run.status == "finished" else 1


def _screen(look: Look, watcher: Watcher, console: Console) -> Table:
    """The run, its sessions, and as many configurations as fit the console, the best ones first."""
    run, done, total = look.run, look.units_done, look.units_total
    head = Text(
        f"run {run.run_id}  {run.status}  {run.function} into {printable(run.model_output_table)}\n", style="bold"
    )
    width = 30
    filled = round(width * done / total) if total else width * (run.status == "finished")
    head.append(f"{'━' * filled}{'─' * (width - filled)} {done} of {total} units", style="default")
    if look.summary:
        head.append(f", {look.summary}", style="default")
    if look.ends_at:
        head.append(f", done at {look.ends_at}", style="default")
    best = look.told["summary"]["best"] if look.told is not None else None
    if best is not None and best["parameters"]:
        given = ", ".join(f"{name} {_shown(value)}" for name, value in best["parameters"].items())
        head.append(f"\nconfiguration {best['mst_key']} has {printable(given)}", style="default")
    if not watcher.is_connected:
        head.append("  (connection lost)", style="red")
    screen = Table.grid(padding=(0, 0))
    screen.add_row(head)
    for s in look.sessions[:8]:
        verb = "trains" if s.kind == "train" else "evaluates"
        where = f"session {s.backend_pid}" if s.server is None else f"server {s.server}"
        models = f"configuration {s.mst_key}" + (f" and {s.models - 1} more" if s.models > 1 else "")
        screen.add_row(
            Text(
                f"{where} {verb} {models}, iteration {s.iteration}, on segment {s.segment}, for {s.seconds:.1f} s",
                style="dim",
            )
        )
    shown = look.ranked()
    room = max(5, (console.size.height if console.is_terminal else 1000) - len(look.sessions[:8]) - 7)
    series = "last loss" if look.told is None else printable(look.told["measure"]["series"])
    table = Table(box=None, header_style="bold")
    for name in ("rank", "configuration", "status", "units", "iteration", series, "unit loss"):
        table.add_column(Text(name))
    for c, told in shown[:room]:
        table.add_row(
            str(told.get("rank", "")),
            str(c.mst_key),
            c.status,
            f"{c.units_done} of {c.units_total}",
            str(c.iteration or ""),
            "" if told.get("value") is None else f"{told['value']:.5g}",
            "" if c.last_loss is None else f"{c.last_loss:.5g}",
            style="red" if c.status == "failed" else None,
        )
    screen.add_row(table)
    if len(shown) > room:
        screen.add_row(Text(f"and {len(shown) - room} configurations more", style="dim"))
    if look.configurations:
        screen.add_row(Text(f"{duration(look.configurations[0].seconds_elapsed)} since the start", style="dim"))
    return screen


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _print_end(look: Look, console: Console) -> None:
    """Print why configurations failed, and what to do next, with the statements."""
    if look.told is None:
        return
    for cause in look.told["causes"]:
        first = (cause["error"] or "").splitlines()[0]
        console.print(Text(f"{cause['count']} failed: {printable(first)}"))
        for line in (cause["shared"], cause["help"]):
            if line:
                console.print(Text(f"    {printable(line)}"))
    steps = look.told["next"]
    if steps:
        console.print(Text("what next:", style="bold"))
    for step in steps:
        console.print(Text(f"  {printable(step['say'])}"))
        for line in (step["sql"] or "").splitlines():  # (a line that wraps could not be copied)
            console.print(Text(f"    {printable(line)}"), soft_wrap=True)
