"""The run coordinator: opens the catalog, servers and sessions of a run, lets the executor work, and closes them.

`execute(spec)` trains and writes the output tables; `apply(spec)` applies a trained model and leaves no run behind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import psycopg2

from mop_udf import aggregate
from pg_mop.backend import trainers
from pg_mop.backend.errors import MopError
from pg_mop.call import deadline, role_costs
from pg_mop.call.planned_run import PlannedRun
from pg_mop.call.servers import Server
from pg_mop.call.spec import RunResult, RunSpec
from pg_mop.catalog import Catalog
from pg_mop.plan.sharing import epochs
from pg_mop.plan.stages import Stage
from pg_mop.run import ending, runs_beside
from pg_mop.run.adoption import Adoption
from pg_mop.run.attempt import Policy
from pg_mop.run.controllers import FixedController, ReplayController, RunController
from pg_mop.run.executor import Executor
from pg_mop.run.messages import Messages, listed
from pg_mop.run.needed_states import NeededStates
from pg_mop.run.remote_runs import RemoteRuns
from pg_mop.run.run import Run
from pg_mop.run.search_controller import SearchController
from pg_mop.run.sessions import Sessions
from pg_mop.run.states import States
from pg_mop.run.turns import Answer, Turns
from pg_mop.schedule import setup
from pg_mop.schedule.dealing import Dealer, LoggedThreads, Threads
from pg_mop.schedule.dealing_by_server import ServerDealers

MEASURED_STAGES = 200  # stages of a net, about, whose units tell its cost: of the later half of iterations


def execute(spec: RunSpec) -> RunResult:
    """Train as the spec says, and write its output tables in the caller's transaction. Raises MopError.

    A call that is explained ends here with its plan (backend/explaining.py).
    """
    if spec.inputs.db.explaining is not None:
        spec.inputs.db.explaining.take(spec)
    coordinator = Coordinator(spec)
    coordinator.reserve()
    coordinator.run()
    with coordinator.output():
        spec.output.write(coordinator.result)
    return coordinator.result


def apply(spec: RunSpec) -> RunResult:
    """Apply a trained model as the spec says, and leave no run behind. Raises MopError."""
    coordinator = Coordinator(spec)
    coordinator.reserve()
    coordinator.run()
    coordinator.catalog.close_run(coordinator.run_id, "finished")
    coordinator.drop()
    coordinator.catalog.close()
    return coordinator.result


class Coordinator(PlannedRun):
    """Coordinates one run. In order: `reserve`, `run`, then the caller writes within `output`."""

    result: RunResult
    sessions: Sessions | None = None
    ongoing: Run | None = None  # once its executor begins

    # --- the run --------------------------------------------------------------------------------------
    def run(self) -> None:
        """Open the run, train, and close everything but the catalog. Raises MopError.

        The catalog stays open, since the output is written with it and no other connection may be free then.
        """
        started = self.db.value("SELECT clock_timestamp()::timestamp::text")
        with contextlib.ExitStack() as stack:  # closed if there is an error
            self.check(stack)
            sessions = self._open_run(stack)
            self._executor(sessions).go()
            self.engine.check_whole(self.catalog.execute)
            self._finish(sessions, started)
            stack.pop_all()

    def _open_catalog(self, stack: contextlib.ExitStack) -> None:
        """Open the catalog's session, and look at the other servers. Raises MopError."""
        options, target = self.options, self.engine.target(None)
        self.catalog = Catalog(self.db, target)
        stack.callback(self.catalog.close)
        local = any(s.server is None and s.host_segment is None for s in self.segments.values())
        if local:
            trainers.expect(self.db, options)
        info = self.engine.info(options["keras_backend"])
        self.servers[None] = Server(None, target, self.catalog, None, self.db.extension, info)
        self.remote_runs = RemoteRuns(self.spec, self.segments, self.servers, self._open_remote_run)
        stack.callback(self._close_remote_catalogs)
        self.remote_runs.reach()

    def _close_remote_catalogs(self) -> None:
        for server in self.remote_runs.remote:
            server.catalog.close()

    # --- the run in the catalog -----------------------------------------------------------------------
    def _open_run(self, stack: contextlib.ExitStack) -> Sessions:
        """Open the run in the catalog, plan it, and open its remote runs. Returns its sessions, which are not open yet."""
        earlier = self.earlier if self.resumes else None
        if earlier is not None:
            self.run_id = self.servers[None].run_id = self.remote_runs.run_id = earlier.run_id
            self.catalog.reopen_run(self.run_id)
        stack.push(self._failed)
        if earlier is not None:
            # read once more: its last units may have ended only now
            earlier.read(self.catalog, self.remote_runs.reopen())
        self._plan()
        if earlier is not None:
            self._copy_log()
            self.adoption = Adoption(self.spec, self.planner, self.catalog, earlier.run_id)
            self.adoption.elements = self.elements
            self.adoption.share()
            self._start_paths()
        else:
            self._begin_run()
        for server in self.remote_runs.remote:
            self.remote_runs.open(server)
        moved = None
        if self.engine.away:
            moved = {key: segment.at(self.servers).server for key, segment in self.segments.items()}
        self.board = setup.make_board(
            self.planner,
            list(self.configurations),
            self.configurations.misfits,
            self.wanted,
            moved,
            self.spec.application is None,
        )
        self.scheduler: Any = setup.make_scheduler(self.planner, self.board)
        self.threads = self._threads()
        self.device_parts = self.device_parts_of(self.board)
        self.unit_specs = self._unit_specs()
        self.sessions = Sessions(
            self.db,
            self._server,
            self.unit_specs.trainer,
            self.unit_specs.wants,
            f"pg_mop run {self.run_id}",
            self.options["lock_timeout"],
        )
        return self.sessions

    def _threads(self) -> Threads:
        """How many threads the trainer of each command has."""
        options, planner = self.options, self.planner
        if self.followed is not None and (log := setup.logged_threads(planner, self.configurations.misfits)):
            return LoggedThreads(options["threads"], log)
        if not options["deal_threads"]:
            return Threads(options["threads"])
        if not self._is_alone():
            return ServerDealers(self.board, self._dealer_at)
        return Dealer(
            self.board, options["most_threads"], options["threads"], planner.unit_key, self.estimates(planner)
        )

    def _dealer_at(self, name: str | None) -> Dealer:
        """Deals the threads of the trainers on one of several servers."""
        board, server = self.board, self.servers[name]
        cores, most = server.info["cores"], self._most_threads_at(server)

        def among() -> list[int]:
            return [worker for worker in board.workers if board.server(worker) == name]

        def part() -> float:
            there = sum(board.server_of["training", segment] == name for segment in board.segments)
            return max(1, there) / len(board.segments)  # (a guest has copies alone)

        most = cores if most is None else min(cores, most)
        least = min(most, max(1, cores // max(1, len(among()))))
        return Dealer(
            board,
            most,
            least,
            self.planner.unit_key,
            self.estimates(self.planner, threads=least),
            among=among,
            part=part,
        )

    def _most_threads_at(self, server: Server) -> int | None:
        """The limit of a trainer's threads on a server, by its own table mop_limit; None: no limit."""
        own: int | None = self.limits["threads"]
        if not server.home:
            try:
                own = server.catalog.execute(f"SELECT threads FROM {server.schema}.mop_my_limits")[0]["threads"]
            except (psycopg2.Error, MopError):  # it is away: the command will tell
                pass
        return own

    def _threads_limit(self, server: str | None) -> int | None:
        if server not in self._threads_at and server in self.servers:
            self._threads_at[server] = self._most_threads_at(self.servers[server])
        return self._threads_at.get(server)

    def _begin_run(self) -> None:
        """Open a new run in the catalog, take over the stages that earlier runs have trained, and write the initial
        weights."""
        tables = self.spec.tables
        if self.earlier is not None:
            tables = {**tables, "replay_of": self.earlier.run_id}
        expected = prediction = found = None
        if self.spec.application is None:
            expected = self.planner.expected_seconds(self.wanted)
            if self.limits["max_seconds"] is not None:
                self.measure_machine()
            self._learn_fixed_costs(role_costs.FEW_LOGGED)
            adoption, stages = (
                Adoption(self.spec, self.planner, self.catalog, 0),
                list(self.planner.plan.stages.values()),
            )
            found = adoption.find(stages)
            taken = {stage.number for stage, *_ in found}
            taken.update(runs_beside.expected(adoption, stages))
            prediction = self._outline(taken)
            self.check_limits(taken)
        misfits = self.configurations.misfits
        self.run_id = self.servers[None].run_id = self.remote_runs.run_id = self._write_run(
            self.catalog,
            self.spec.function,
            [{**c, "error": misfits.get(c["mst_key"])} for c in self._noted()],
            {
                "arguments": self.spec.arguments,
                "settings": {**self.options, "seed": self.seed},
                "tables": tables,
                "search_path": self.db.callers_path,
                **({"code": code} if (code := self.configurations.code_to_log) else {}),
            },
            expected,
            prediction,
        )
        if self.deadline is not None and prediction is not None:
            late = deadline.warning(self.deadline, prediction["seconds"], self.wanted)
            if late is not None:
                self.db.warning(late[0], detail=late[1], hint=late[2])
        self._copy_log()
        self.adoption = Adoption(self.spec, self.planner, self.catalog, self.run_id)
        self.adoption.elements = self.elements
        self.adoption.share()
        try:
            stages = list(self.planner.plan.stages.values())
            # (what others have trained is looked for again: only now the run may share with other roles)
            self.adoption.adopt(stages, None if self.catalog.shares is not None else found)
            self._start_paths()
        except MopError as error:  # before any work: nothing is left of the run
            self.catalog.close_run(self.run_id, *ending.outcome_of(error))
            self.catalog.drop_run(self.run_id)
            self.run_id = None
            raise

    def _copy_log(self) -> None:
        """Give a replay of a search the log that it follows, if the earlier coordinator has not done so."""
        if self.followed is not None and not self.catalog.search_log(self.run_id):
            self.catalog.log_search(self.run_id, 1, self.followed.events)

    def _open_remote_run(self, catalog: Any, leader: str) -> int:
        """Open a remote run in the catalog of another server: its number there."""
        return self._write_run(
            catalog,
            "remote_run",
            [{**c, "error": None, "weights_sql": None} for c in self._noted()],
            {"leader": leader, "run": self.run_id, "arguments": {}, "settings": {}},
            None,  # nobody looks at a remote run
            None,
        )

    def _start_paths(self) -> None:
        """Write the initial weights of paths, if the earlier coordinator has not done so. Raises MopError."""
        if orphans := self.planner.orphans():
            raise MopError(
                f"mst_key {orphans[0].mst_key} began with weights of another trial, and no state of its own is left",
                detail="A call that trains it alone can go on from its own state only.",
                hint="SET pg_mop.reuse = on; before the search keeps states, and lets later calls take them over. Or load the "
                "model's architecture and weights with load_keras_model, and train that.",
                sqlstate="55000",
            )
        begun = self.catalog.models(self.run_id)
        stages = self.planner.plan.stages.values()
        of = {
            key: c
            for c in self.configurations
            for key in (self.planner.replicas() if self.spec.averaging else [c["mst_key"]])
        }
        self.catalog.start(self.run_id, [stage for stage in stages if stage.number not in begun], of)
        if self.spec.application is not None:  # the model has been trained already
            for stage in stages:
                stage.trained = True

    # --- the executor ---------------------------------------------------------------------------------
    def _controller(self, messages: Messages) -> RunController:
        """The controller that decides which iterations are trained."""
        plan, catalog, run_id, search = self.planner.plan, self.catalog, self.run_id, self.spec.search

        def metrics_of(stages: list[int]) -> Any:
            return catalog.metrics(run_id, stages=stages)

        basics = plan, self.configurations, metrics_of, messages
        iterations: dict[str, Any] = {
            "num_iterations": self.inputs.num_iterations,
            "metrics_iterations": self.inputs.metrics_iterations,
        }
        if search is not None:
            self.procedure = search.procedure(self.seed, len(self.planner.workload.keys("training")))
        if self.followed is not None and not self.spec.averaging:
            return ReplayController(*basics, ends=self.followed.ends, best=self.followed.best, **iterations)
        if search is None:
            return FixedController(*basics, **iterations)
        events = catalog.search_log(run_id)
        if not events:  # (logged at once: a coordinator that resumes the run has both or none)
            events = [["known", search.known]] if search.known else []
            catalog.log_search(run_id, 1, events)
        return SearchController(
            *basics,
            procedure=self.procedure,
            search=search,
            began=self.inputs.began,
            num_iterations=self.inputs.num_iterations,
            events=events,
            log=lambda number, new: catalog.log_search(run_id, number, new),
            late_requests=lambda: catalog.control_requests(run_id, last=True),
            stopped_before=self.earlier.stopped if self.earlier is not None else (),
            seed=self.seed,
            segments=[one for (dataset, _), one in sorted(self.segments.items()) if dataset == search.dataset],
        )

    def _executor(self, sessions: Sessions) -> Executor:
        """The executor of the run, with its sessions open if there is anything to do."""
        planner, board = self.planner, self.board
        self.messages = Messages(self.spec, self.catalog, self.run_id, self._failures)
        if self.followed is not None:
            self.messages.changed_code(self.followed, self.configurations.code)
        self.controller = controller = self._controller(self.messages)
        self.adoption.controller = controller
        if not (board.done and controller.done):
            self._open_sessions(sessions)
            if board.anywhere:
                for worker, digest in sessions.compiled():
                    self.scheduler.affinity.setdefault((board.server(worker), planner.sharing.number(digest)), worker)
        # writing the output needs numpy: it is imported while the trainers start
        from pg_mop.backend.arrays import state  # noqa: F401

        self.ongoing = self._ongoing(sessions)
        return Executor(self.ongoing, controller, self.adoption, self.remote_runs)

    def _ongoing(self, sessions: Sessions) -> Run:
        """The state of the run, as it is before the executor begins."""
        assert self.device_parts is not None
        earlier = self.earlier if self.resumes else None
        plan, board, specs, options = self.planner.plan, self.board, self.unit_specs, self.options
        states = States(self.servers, lambda stage: specs.sharing.key(plan.stages[stage])[0])
        versions = {stage: state["version"] for stage, state in self.catalog.models(self.run_id).items()}
        kept_bytes = options["checkpoint_mb"] << 20 if options["reuse"] else 0  # for later runs
        resume = f"SELECT {self.db.extension}.mop_resume({self.run_id});"
        return Run(
            db=self.db,
            catalog=self.catalog,
            run_id=self.run_id,
            servers=self.servers,
            sessions=sessions,
            wanted=self.wanted,
            plan=plan,
            board=board,
            scheduler=self.scheduler,
            unit_specs=specs,
            states=states,
            needed=NeededStates(plan, board, states, specs, versions, kept_bytes),
            threads=self.threads,
            turns=self._turns(),
            device_parts=self.device_parts,
            policy=Policy(options["unit_retries"], options["server_timeout"] / 1000, resume),
            options=options,
            done_before=len(earlier.finished) if earlier is not None else 0,
            begun_before=earlier.attempts if earlier is not None else {},
        )

    def _turns(self) -> Turns:
        """The run's turns on this server's cores. Only training takes turns, in trainers of this server."""
        cores, local = self.servers[None].info["cores"], sum(self.board.server(w) is None for w in self.board.workers)
        takes = local and self.engine.takes_turns and self.spec.application is None and self.options["trainers"] is None
        # (on several servers each has its own number of threads: see UnitSpecs.trainer)
        threads = min(cores, self.options["threads"] or max(1, cores // max(1, local)))
        answer: Answer = 0, False, 0
        left = self._left() if takes else None

        def ask(wanted: int, busy: int) -> Answer:
            nonlocal answer
            at = None if self.deadline is None else self.deadline.at
            try:
                answer = self.catalog.take_turn(
                    self.run_id, wanted, busy, cores, threads, self.options["priority"], at, left and left()
                )
            except psycopg2.Error as error:
                if error.pgcode != "55P03":  # somebody changes the priority: the last answer counts
                    raise
            return answer

        return Turns(ask if takes else None, threads, cores)

    def _left(self) -> Callable[[], float] | None:
        """Tells the seconds of training that are left of the run's prediction, if it were alone; None without a prediction."""
        found = self.catalog.prediction(self.run_id) or {}
        units, makespan = found.get("training_units"), found.get("makespan")
        if not units or makespan is None:
            return None
        before = sum(unit.kind == "train" for unit in self.earlier.finished) if self.earlier and self.resumes else 0

        def left() -> float:
            trained = before + (self.ongoing.counts.trained if self.ongoing is not None else 0)
            return min(1e9, float(makespan * max(0.0, 1 - trained / units)))

        return left

    def _failures(self) -> dict[int, str]:
        return {**(self.ongoing.failed if self.ongoing is not None else {}), **self.configurations.misfits}

    def _open_sessions(self, sessions: Sessions) -> None:
        """Open the worker sessions; go on with fewer if not all can be had and the others can do the work."""
        board, workers = self.board, list(self.board.workers)
        aggregate.session(self.db.plpy).give_back()  # a worker may need the trainer of the calling session
        refused = sessions.open(workers)
        if refused is not None:
            opened = [worker for worker in workers if worker in sessions.by_worker]
            if {board.server(worker) for worker in opened} < {board.server(worker) for worker in workers}:
                raise refused  # no other worker could train that server's segments
            board.serve(opened)
            self.db.warning(
                f"run {self.run_id} goes on with {len(opened)} of {len(workers)} worker sessions: {refused.message}",
                detail=refused.detail,
                hint=refused.hint,
            )

    # --- the end --------------------------------------------------------------------------------------
    def _finish(self, sessions: Sessions, started: str) -> None:
        """All units are done: read the results on other servers, drop the remote runs, keep the costs, and
        end the sessions. Raises MopError if nothing could be trained."""
        spec, planner = self.spec, self.planner
        if spec.application is not None and spec.application.gather is not None:
            spec.application.gather(self.servers, self.segments)
        self.remote_runs.drop()
        self._note_costs()
        sessions.close()
        failed, stages = self._failures(), planner.plan.stages
        kept = {key: stages[stage].iteration for key, stage in self.controller.kept.items()}
        self.result = RunResult(spec, self.catalog, self.run_id, started, failed, kept)
        self.result.segments = len(planner.workload.keys("training"))
        self.result.replicas = planner.workload.rows if spec.averaging else []
        self.result.procedure = getattr(self, "procedure", None)
        failed = self.configurations.failures(failed)
        if spec.averaging and failed or len(failed) == len(self.configurations.own):
            raise MopError(spec.all_failed(failed), detail=listed(failed), sqlstate="22000")
        self.controller.finish()
        if self.followed is not None:
            self.messages.compare(self.followed, self.result.metrics, self.options)

    def _note_costs(self) -> None:
        """Keep the measured costs of nets for later runs, from the stages of each net that were trained last: by then, trainers
        have chosen their kernels."""
        by_net: dict[Any, list[Stage]] = {}
        needed = self.ongoing.needed if self.ongoing is not None else None
        for number in sorted(needed.versions) if needed is not None else ():
            stage = self.planner.plan.stages[number]
            if needed is not None and needed.has_trained(stage):
                by_net.setdefault(self.planner.sharing.net(stage), []).append(stage)
        passes: dict[Any, dict[int, int]] = {}
        for net, stages in by_net.items():
            stages.sort(key=lambda stage: stage.iteration)
            late = stages[len(stages) // 2 :]
            passes[net] = {
                stage.number: epochs(stage.parameters[1]) for stage in late[:: len(late) // MEASURED_STAGES + 1]
            }
        try:
            self.catalog.note_costs(self.run_id, passes)
        except (MopError, psycopg2.Error) as trouble:  # the run does not depend on it
            self.db.log(f"the costs of run {self.run_id} could not be kept: {trouble}")

    def _failed(self, kind: Any, error: BaseException | None, _: Any) -> bool:
        """The run ends with an error: end its sessions and note why. The units that are committed stay."""
        if error is not None and self.run_id is not None:
            self._close_failed(error)
        if isinstance(error, psycopg2.Error):
            run = "the run" if self.run_id is None else f"run {self.run_id}"
            raise MopError(
                f"a session of {run} failed: {str(error).strip()}", sqlstate=error.pgcode or "08006"
            ) from None
        return False

    def _close_failed(self, error: BaseException) -> None:
        """End the sessions, and note why the run has ended."""
        stuck = self.sessions.abandon() if self.sessions is not None else []
        self._note_costs()
        self.remote_runs.close(*ending.outcome_of(error))
        try:
            self.catalog.terminate(stuck)
            self.catalog.close_run(self.run_id, *ending.outcome_of(error))
        except (MopError, psycopg2.Error) as trouble:  # the first error is the one to report
            self.db.log(f"run {self.run_id} could not be closed: {trouble}")
        if self.spec.application is not None:
            self.drop()

    def drop(self) -> None:
        """Leave nothing of the run."""
        try:
            self.catalog.drop_run(self.run_id)
        except (MopError, psycopg2.Error) as trouble:  # the next call that trains drops it
            self.db.log(f"run {self.run_id} is left behind: {trouble}")

    def output(self) -> contextlib.AbstractContextManager[None]:
        """Within it the caller writes the output tables. Then the run is finished; an error is noted in its row."""
        keeps = self.options["reuse"] and self.options["checkpoint_mb"] and not self.spec.averaging
        return ending.writing(self.result, bool(keeps), self.messages.late)
