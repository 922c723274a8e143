"""mop dashboard: the live page, a web application for this machine alone, that queries the database as the caller's role.

serving.py serves it, guard.py checks access, snapshots.py queries the database, viewing.py selects and sorts, and page/ has
the files for the browser.
"""

import asyncio
import itertools
import json
import pathlib
import re
import threading
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import sqlalchemy
from sqlalchemy import text
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from pg_mop_client import comparing, details, requested, submitting, trusted, viewing
from pg_mop_client.database import connected, quote_table
from pg_mop_client.errors import ClientError, LostError, ServerError
from pg_mop_client.guard import Guard
from pg_mop_client.report_sections import DRAWING, PICTURES, Section
from pg_mop_client.run import Run
from pg_mop_client.snapshots import Snapshots

PAGE = pathlib.Path(__file__).parent / "page"
OWN = ("files", "filter", "sections", "notes", "submit", "drawer", "lists", "live")
# page and reports draw with the same code: the first scripts and page.css are the reports'
SCRIPTS = (*DRAWING, "model.js", *(f"{name}.js" for name in OWN))
FILES = {**dict.fromkeys(SCRIPTS, "text/javascript"), **dict.fromkeys(("page.css", "live.css"), "text/css")}
MOST_BESIDE = 6  # runs in a comparison
BEST_BESIDE = 20  # configurations of each run in a comparison
RESUME_SECONDS = 20  # for a resumed run to begin


class Unknown(ClientError):
    """No run has the requested number."""


class Dashboard:
    """The pages and the API that they call."""

    def __init__(self, engine: sqlalchemy.Engine, schema: str) -> None:
        self.engine, self.schema = engine, schema
        self.snapshots = Snapshots(engine, schema)
        self.sql = self.snapshots.schema  # quoted
        self._evaluations, self._drivers = threading.Lock(), threading.Lock()
        self._driver: Any = None  # of the connection that evaluates a model

    def app(self, port: int, token: str) -> Guard:
        """The ASGI application of the page on a port of 127.0.0.1. Every API call must have the `token`."""
        routes = [
            Route("/", self._shell),
            Route("/run/{run:int}", self._shell),
            Route("/compare", self._shell),
            Route("/models", self._shell),
            Route("/model", self._shell),
            Route("/static/{name}", self._file),
            Route("/api/runs", self._answer(self.runs)),
            Route("/api/models", self._answer(self.models)),
            Route("/api/model", self._answer(self.model)),
            Route("/api/model/evaluate", self._answer(self.evaluate), methods=["POST"]),
            Route("/api/model/cancel", self._answer(self.cancel_evaluation), methods=["POST"]),
            Route("/api/explain", self._answer(self.explain), methods=["POST"]),
            Route("/api/submit", self._answer(self.submit), methods=["POST"]),
            Route("/api/compare", self._answer(self.compare)),
            Route("/api/compare/leaderboard.csv", self._answer(self.compared_leaderboard)),
            Route("/api/run/{run:int}", self._answer(self.run)),
            Route("/api/run/{run:int}/plan", self._answer(self.plan)),
            Route("/api/run/{run:int}/data", self._answer(self.data)),
            Route("/api/run/{run:int}/configuration", self._answer(self.configuration)),
            Route("/api/run/{run:int}/model.keras", self._answer(self.keras)),
            Route("/api/run/{run:int}/importance", self._answer(self.importance)),
            Route("/api/run/{run:int}/report.html", self._answer(self.report)),
            Route("/api/run/{run:int}/leaderboard.csv", self._answer(self.leaderboard)),
            *(
                Route(f"/api/run/{{run:int}}/{name}", self._answer(work), methods=["POST"])
                for name, work in (
                    ("cancel", self.cancel),
                    ("resume", self.resume),
                    ("stop", self.stop),
                    ("note", self.note),
                    ("evaluate", self.evaluate_configuration),
                    ("drift", self.drift),
                    ("sessions", self.sessions),
                )
            ),
        ]
        return Guard(Starlette(routes=routes), token, port)

    # --- queries -----------------------------------------------------------------------------------------
    def runs(self, request: Request) -> dict[str, Any]:
        """A page of the list of runs, with the search, state and order of the request."""
        asked = request.query_params
        return self.snapshots.runs(
            requested.whole(asked.get("page", "1"), "page"),
            asked.get("words", ""),
            asked.get("state") or None,
            asked.get("sort") or None,
            asked.get("desc") == "1" if asked.get("sort") else True,
        )

    def models(self, request: Request) -> dict[str, Any]:
        """The list of named models."""
        return self.snapshots.models()

    def model(self, request: Request) -> dict[str, Any]:
        """The stored values of a named model: its versions, their measures, simple models. No row of a table is read."""
        return self.snapshots.model(*requested.model(request.query_params))

    def run(self, request: Request) -> dict[str, Any]:
        """The progress of a run, and its view, unless the caller already has the latest version (`have`)."""
        number, head, data = self.snapshots.run(request.path_params["run"])
        found: dict[str, Any] = {"number": str(number), "head": head}
        if request.query_params.get("have") != str(number):
            chosen = self._chosen(data, request)
            keys = _keys(data, chosen)
            narrow = keys is not None and not head["pending"]
            pictures = self.snapshots.some(request.path_params["run"], keys) if keys is not None and narrow else None
            pending = keys is not None and pictures is None  # until they are read, those of all configurations do
            if pending:
                pictures = viewing.narrowed(data, chosen)
                found["number"] = f"{number}-"
            found["view"] = viewing.view(
                data, chosen, requested.whole(request.query_params.get("page", "1"), "page"), pictures
            )
            found["view"]["pending"] = pending or head["pending"]
        return found

    def compare(self, request: Request) -> dict[str, Any]:
        """The best configurations of several runs in one view."""
        read = self._compared(request)
        number = "-".join(str(n) for n, _, _ in read)
        heads = [head for _, head, _ in read]
        found: dict[str, Any] = {"number": number, "heads": heads}
        if request.query_params.get("have") != number:
            data = self._beside(read)
            found["view"] = viewing.view(
                data, self._chosen(data, request), requested.whole(request.query_params.get("page", "1"), "page")
            )
            found["view"]["differences"] = comparing.differences([own for _, _, own in read])
        return found

    def compared_leaderboard(self, request: Request) -> Response:
        """All pages of the table of several runs, with the filter and order of the page, as CSV."""
        data = self._beside(self._compared(request))
        return _download(viewing.table(data, self._chosen(data, request)), "text/csv", "runs.csv")

    def _compared(self, request: Request) -> list[tuple[int, dict[str, Any], dict[str, Any]]]:
        """(number, head, data) of each requested run. Raises ClientError."""
        asked = dict.fromkeys(requested.whole(run, "run") for run in request.query_params.getlist("run"))
        if not 2 <= len(asked) <= MOST_BESIDE:
            raise ClientError(f"{len(asked)} runs cannot be compared", hint=f"Select from two to {MOST_BESIDE} runs.")
        read = [(run, *self.snapshots.run(run)) for run in asked]
        return [(number, {**head, "run_id": run}, data) for run, number, head, data in read]

    @staticmethod
    def _beside(read: list[tuple[int, dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
        """The data of several runs in the form of one run's data. Raises ClientError."""
        data = comparing.beside([data for _, _, data in read], BEST_BESIDE)
        if data is None:
            raise ClientError("the runs have no common loss or metric to rank them")
        return data

    def plan(self, request: Request) -> dict[str, Any]:
        """What the run was expected to take, and what it took (mop_explain_run), as text."""
        run = self._seen(request)[0]
        return {"text": self._execute(f"SELECT {self.sql}.mop_explain_run(:run)", run=run)}

    def data(self, request: Request) -> dict[str, Any]:
        """The packed tables of a run, each with the row of its summary and the columns of its transform (None if it is gone, or
        if the run is another role's)."""
        run = self._seen(request)[0]
        with connected(self.engine) as connection:
            row = details.tables_of(connection, self.sql, run)
            tables = [
                {
                    "role": role,
                    "name": name,
                    "facts": details.summary_of(connection, name) if row.own else None,
                    "columns": details.columns_of(connection, self.sql, name) if row.own else None,
                }
                for role, name in (("training rows", row.source_table), ("validation rows", row.validation_table))
                if name is not None
            ]
        return {"tables": tables}

    def configuration(self, request: Request) -> dict[str, Any]:
        """One configuration of a run."""
        run, (_, _, data) = request.path_params["run"], self.snapshots.run(request.path_params["run"])
        key = requested.whole(request.query_params.get("mst_key"), "mst_key")
        with connected(self.engine) as connection:
            return details.configuration(connection, self.sql, run, key, data)

    def keras(self, request: Request) -> Response:
        """The model of a configuration as a .keras file."""
        run, _ = self._seen(request)
        key = requested.whole(request.query_params.get("mst_key"), "mst_key")
        with connected(self.engine) as connection:
            row = details.tables_of(connection, self.sql, run)
            if not row.own:
                raise ClientError(f"run {run} is another role's: that role exports its models")
            content = details.model_file(connection, self.sql, row.model_output_table, key)
        return Response(
            content,
            media_type="application/zip",
            headers={"content-disposition": f'attachment; filename="run_{run}_{key}.keras"'},
        )

    def importance(self, request: Request) -> dict[str, Any]:
        """The importance of each parameter by Optuna, of the configurations that pass the filter."""
        run, (_, _, data) = self._run(request), self.snapshots.run(request.path_params["run"])
        return details.importance(run, data, self._chosen(data, request))

    def report(self, request: Request) -> Response:
        """The report of the configurations that pass the filter, as a file."""
        run, (_, _, data) = self._run(request), self.snapshots.run(request.path_params["run"])
        keys = _keys(data, self._chosen(data, request))
        return _download(run.report(mst_keys=keys), "text/html", f"run_{run.run_id}.html")

    def leaderboard(self, request: Request) -> Response:
        """All pages of the leaderboard, with the filter and order of the page, as CSV."""
        _, _, data = self.snapshots.run(request.path_params["run"])
        return _download(
            viewing.table(data, self._chosen(data, request)), "text/csv", f"run_{request.path_params['run']}.csv"
        )

    def _run(self, request: Request) -> Run:
        selection: Any = SimpleNamespace(engine=self.engine, schema=self.schema)
        return Run(selection, request.path_params["run"])

    @staticmethod
    def _chosen(data: viewing.Data, request: Request) -> list[viewing.Data]:
        """The configurations that pass the request's filter, in the request's order. Raises ClientError."""
        asked = request.query_params
        states = asked.getlist("state")
        if unknown := set(states) - set(viewing.STATES):
            raise ClientError(
                f"there is no state {min(unknown)!r}", hint=f"The states are {', '.join(viewing.STATES)}."
            )
        given: dict[str, dict[str, Any]] = {
            kind: {
                name[len(kind) + 1 :]: value for name, value in asked.items() if name.startswith(f"{kind}.") and value
            }
            for kind in ("low", "high")
        }
        words: dict[str, list[str]] = {}
        for name, value in asked.multi_items():
            if name.startswith("is.") and value:
                words.setdefault(name[3:], []).append(value)
        for kind in ("low", "high"):
            given[kind] = {name: requested.number(value, name) for name, value in given[kind].items()}
        best = requested.whole(asked["best"], "best") if asked.get("best") else None
        found = viewing.chosen(data, states, best, given["low"], given["high"], words)
        return viewing.ordered(data, found, asked.get("sort"), asked.get("desc") == "1")

    # --- actions -----------------------------------------------------------------------------------------
    def cancel(self, request: Request, _: Mapping[str, Any]) -> dict[str, str]:
        """Cancel the call or job that executes the run."""
        run = self._seen(request)[0]
        done = self._execute(
            f"SELECT pg_catalog.pg_cancel_backend(r.coordinator_pid) FROM {self.sql}.mop_run r "
            f"JOIN {self.sql}.mop_runs s USING (run_id) WHERE r.run_id = :run "
            f"AND s.status = 'running'",
            run=run,
        )
        if not done:
            raise ClientError(f"run {run} is not running")
        return {"said": "The run will end. All finished units are kept."}

    def resume(self, request: Request, _: Mapping[str, Any]) -> dict[str, str]:
        """Resume a run as a job of the server, which continues without a connected client."""
        run, status = self._seen(request)
        if status in ("finished", "running"):
            raise ClientError(f"run {run} is {status}")
        command = f"SELECT {self.sql}.mop_resume({run})".replace("\\:", ":")
        job = self._execute(f"SELECT {self.sql}.mop_submit(:command)", command=command)
        until = time.monotonic() + RESUME_SECONDS
        while True:  # (the answer comes when the run has begun)
            done = self._execute(f"SELECT {self.sql}.mop_wait(:job, interval '0.5 seconds')", job=job)
            if done in ("failed", "cancelled"):
                raise ClientError(
                    self._execute(f"SELECT error FROM {self.sql}.mop_jobs WHERE job = :job", job=job)
                    or f"job {job} is {done}"
                )
            if done == "finished" or self._seen(request)[1] in ("finished", "running"):
                return {"said": f"The run continues as job {job}, independent of this page."}
            if time.monotonic() > until:
                return {"said": f"Job {job} will resume the run, but has not begun yet: mop jobs {job}"}

    def stop(self, request: Request, given: Mapping[str, Any]) -> dict[str, str]:
        """Stop one configuration."""
        (run, _), key = self._seen(request), requested.whole(given.get("mst_key"), "mst_key")
        self._execute(f"SELECT {self.sql}.mop_stop_trial(:run, :key)", run=run, key=key)
        return {"said": f"Configuration {key} will stop."}

    def sessions(self, request: Request, given: Mapping[str, Any]) -> dict[str, str]:
        """Set the number of worker sessions of a run."""
        (run, _), count = self._seen(request), requested.whole(given.get("sessions"), "sessions")
        self._execute(f"SELECT {self.sql}.mop_set_sessions(:run, :count)", run=run, count=count)
        return {"said": f"The run will work with {count} sessions."}

    def note(self, request: Request, given: Mapping[str, Any]) -> dict[str, str]:
        """Write the note and the tags of a run (mop_note)."""
        (run, _), note, tags = self._seen(request), given.get("note"), given.get("tags")
        if not isinstance(note, str) or not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
            raise ClientError("a note is a text, and tags are a list of texts")
        if any("\0" in own or not own.isprintable() for own in (note.replace("\n", " "), *tags)):
            raise ClientError("the note or a tag has characters that cannot be printed")
        self._execute(f"SELECT {self.sql}.mop_note(:run, :note, CAST(:tags AS text[]))", run=run, note=note, tags=tags)
        return {"said": f"The note of run {run} is kept."}

    def evaluate(self, request: Request, given: Mapping[str, Any]) -> dict[str, Any]:
        """The report's data of a model on the rows of a table or view, read with the role's rights; one at a time."""
        name, version = requested.model(given)
        source = given.get("source")
        if not isinstance(source, str) or not source.strip():
            raise ClientError("no table is given", hint="A table or view whose rows have the target.")
        quote_table(source.strip())  # (raises ClientError for what cannot be a name, such as a query)
        return self._measure(lambda connection: self.snapshots.measured(connection, name, version, source.strip()))

    def evaluate_configuration(self, request: Request, given: Mapping[str, Any]) -> dict[str, Any]:
        """The report's data of a configuration's model on the run's packed rows (mop_configuration_report); one at a time."""
        (run, _), key = self._seen(request), requested.whole(given.get("mst_key"), "mst_key")
        return self._measure(
            lambda connection: json.loads(
                connection.execute(
                    text(f"SELECT {self.sql}.mop_configuration_report(:run, :key)"), {"run": run, "key": key}
                ).scalar_one()
            )
        )

    def drift(self, request: Request, _: Mapping[str, Any]) -> dict[str, Any]:
        """How far the rows of a run's source are, now, from those that were packed; one at a time."""
        run = self._seen(request)[0]

        def compare(connection: sqlalchemy.Connection) -> dict[str, Any]:
            row = details.tables_of(connection, self.sql, run)
            if not row.own:
                raise ClientError(f"run {run} is another role's: that role reads its tables")
            return details.drift(connection, self.sql, row.source_table)

        return self._measure(compare)

    def _measure(self, work: Callable[[sqlalchemy.Connection], dict[str, Any]]) -> dict[str, Any]:
        """The result of `work` in a transaction that reads only; `cancel_evaluation` cancels it. Raises ClientError."""
        if not self._evaluations.acquire(blocking=False):
            raise ClientError("another evaluation is in progress", hint="Wait for its end, or cancel it.")
        try:
            with connected(self.engine) as connection:
                self._note(connection.connection.dbapi_connection)
                try:
                    with trusted.transaction(connection):
                        return work(connection)
                finally:
                    self._note(None)
        finally:
            self._evaluations.release()

    def explain(self, request: Request, given: Mapping[str, Any]) -> dict[str, str]:
        """The plan of a call that trains, as text (mop_explain)."""
        command = submitting.command_of(given.get("command"))
        with connected(self.engine) as connection:
            return {"text": submitting.explained(connection, self.sql, command)}

    def submit(self, request: Request, given: Mapping[str, Any]) -> dict[str, str]:
        """Submit a call that mop_explain accepts, as a job of the server."""
        command = submitting.command_of(given.get("command"))
        with connected(self.engine) as connection:
            job = submitting.submitted(connection, self.sql, command)
        return {"said": f"Job {job} runs it, independent of this page. Its run comes into the list."}

    def _note(self, driver: Any) -> None:
        with self._drivers:
            self._driver = driver

    def cancel_evaluation(self, request: Request, _: Mapping[str, Any]) -> dict[str, str]:
        """Cancel the evaluation of a model."""
        with self._drivers:
            if self._driver is None:
                raise ClientError("no evaluation is in progress")
            self._driver.cancel()
        return {"said": "The evaluation will end."}

    def _seen(self, request: Request) -> tuple[int, str]:
        """(number, status) of the requested run. Raises Unknown if the role sees no such run."""
        run = request.path_params["run"]
        status = self._execute(f"SELECT status FROM {self.sql}.mop_runs WHERE run_id = :run", run=run)
        if status is None:
            raise Unknown(f"there is no run {run} that the role may see")
        return run, status

    def _execute(self, sql: str, **values: Any) -> Any:
        with connected(self.engine) as connection:
            return connection.execute(text(sql), values).scalar()

    # --- answers -----------------------------------------------------------------------------------------
    def _answer(self, work: Callable[..., Any]) -> Callable[[Request], Any]:
        """An endpoint that executes `work` in a thread, and reports its errors as JSON."""

        async def endpoint(request: Request) -> Response:
            try:
                requested.check_texts(request.query_params.multi_items())
                if request.method != "POST":
                    found = await run_in_threadpool(work, request)
                else:
                    found = await run_in_threadpool(work, request, await requested.body(request))
                    if "run" in request.path_params and work != self.evaluate_configuration:
                        self.snapshots.forget(request.path_params["run"])
                return found if isinstance(found, Response) else JSONResponse(found)
            except ClientDisconnect:  # the request broke off, and nobody reads this answer
                return _wrong(400, "the request is not whole")
            except asyncio.CancelledError:  # uvicorn ends before a long request does
                return _wrong(503, "the page has ended")
            except LostError as error:
                return _wrong(503, "the connection to the database is lost", str(error))
            except ServerError as error:
                return _wrong(400, error.message, error.hint)
            except ClientError as error:
                unknown = request.method == "GET" or isinstance(error, Unknown)
                return _wrong(404 if unknown else 409, error.message, error.hint)

        return endpoint

    async def _shell(self, request: Request) -> Response:
        return HTMLResponse(shell())

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in FILES:
            return _wrong(404, "there is no such file")
        return Response((PAGE / name).read_bytes(), media_type=FILES[name])


def shell() -> str:
    """The page without data: shell.html, with the pictures of the reports and the scripts in place of its comments."""
    parts = {"scripts": "\n".join(f'<script src="/static/{name}"></script>' for name in SCRIPTS)}
    for place in dict.fromkeys(picture.place for picture in PICTURES):
        of_place = [picture for picture in PICTURES if picture.place == place]
        groups = itertools.groupby(of_place, lambda picture: picture.beside)
        html = ((beside, "\n".join(map(_picture, pictures))) for beside, pictures in groups)
        parts[place] = "\n".join(f'<div class="two">\n{own}\n</div>' if beside else own for beside, own in html)
    return re.sub(r"<!-- (\w+) -->", lambda found: parts[found[1]], (PAGE / "shell.html").read_text("utf-8"))


def _picture(own: Section) -> str:
    """The HTML of a section without data. (Its texts are those of this package's own list.)"""
    name, sampled = own.name, own.sampled or own.name
    hint = f'\n<p class="hint">{own.hint}</p>' * bool(own.hint)
    below = f'<div id="{own.below}"></div>' * bool(own.below)
    return (
        f'<section aria-labelledby="{name}-title"><h2 id="{name}-title">{own.title}</h2>{hint}\n'
        f'<p class="note" id="{name}-note" data-sampled="{sampled}"></p><div class="picture" id="{name}-picture"></div>{below}'
        "</section>"
    )


def _keys(data: viewing.Data, chosen: list[viewing.Data]) -> list[int] | None:
    """The keys of the chosen configurations of a run; None if all are chosen."""
    return None if len(chosen) == len(data["configurations"]) else sorted(c["mst_key"] for c in chosen)


def _wrong(status: int, message: str, hint: str | None = None) -> Response:
    return JSONResponse({"error": message, "hint": hint}, status)


def _download(content: str, kind: str, name: str) -> Response:
    return Response(
        content, media_type=f"{kind}; charset=utf-8", headers={"content-disposition": f'attachment; filename="{name}"'}
    )
