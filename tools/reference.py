"""Writes docs/reference.md, docs/reference/ and their part of mkdocs.yml: the extension's views, settings and functions (make
reference).

Functions and their texts come from pg_mop.api.common.help (madlib.mop_functions), their arguments from the SQL files, the
names, defaults and ranges of the settings from pg_mop.settings (madlib.mop_settings). No server is needed.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "plpy_modules"), str(ROOT)]

from pg_mop.api.common import help as helps  # noqa: E402

VIEWS = {
    "mop_runs": "One row per run: status, owner, seed, times, error, merge rate.",
    "mop_progress": "One row per configuration: units done and units in total, last loss, status; the seconds of the "
    "whole run.",
    "mop_run_progress": "One row per run: units done and units in total, each counted once, the seconds so far and left. "
    "Cheap.",
    "mop_watch": "One line of text per run in progress, or for the last run: `SELECT line FROM madlib.mop_watch \\watch 5`.",
    "mop_queue": "The runs that train on this server now: who trains, who waits, with which cores, and when each is expected "
    "to train again and to end.",
    "mop_monitoring": "One row per role of numbers for Prometheus and other monitoring: runs, queue, trainers, units, bytes "
    "([administration](administration.md#monitor)).",
    "mop_audit": "One row per act: who ran, replayed, resumed, changed, stopped or dropped what, and when "
    "([administration](administration.md#audit)).",
    "mop_my_sharing": "The group with whose members the role shares what its runs train (`mop_share_training`); `in_force` is "
    "false where it is no member any more.",
    "mop_hops": "The model states that went from one server to another: bytes, seconds, way.",
    "mop_units": "One row per attempt at a unit: session, kernel, rows, loss, times. The units of one unit batch share "
    "the times of their command; in a chain, each has its own times.",
    "mop_metrics": "One row per value of an evaluation: the loss and each metric, by iteration.",
    "mop_metrics_wide": "One row per evaluation, with the loss and all metrics.",
    "mop_kernel_choices": "The kernel of each training unit, the measured times behind that choice, and the number of frozen "
    "layers that the unit did not compute.",
    "mop_unit_costs": "The cost history of the role's last runs: seconds per mini-batch, by net, kernel, device and server "
    "([kernels](how_it_works.md#planning)).",
    "mop_stages": "One row per stage: a trained iteration, and the configurations that share it.",
    "mop_notes": "The notes and tags of runs (`mop_note`).",
    "mop_trials": "One row per configuration, and per fold of one (`fold`, `fold_of`): iterations, losses and metrics so far, "
    "the reason if it stopped early, and what chooses its best state (`kept_by`).",
    "mop_lineage": "One row per trial of a model space, or made from another trial: its member, choices and primitives, its "
    "parent, what was changed and inherited ([model spaces](spaces.md)).",
    "mop_visit_order": "The order in which each configuration visited the segments. `mop_replay` follows it.",
    "mop_abandoned_runs": "Runs that hold disk space although no session works on them, with the commands that resume "
    "or drop them.",
    "mop_jobs": "The jobs of `mop_submit`, which run without their client: status, runs, messages, error.",
    "mop_trainers": "The trainers in the pool: who leases each, or that it serves, since when, and the memory, nets and rows "
    "of each.",
    "mop_my_limits": "The [limits](administration.md#limit) of the caller's role. NULL: no limit.",
    "mop_models": "The versions of all named models that the role may read (docs/tables.md). `computed_by`: 'backend', or "
    "'trainer: ' and why the session cannot compute the net by itself.",
    "mop_trainings": "The calls of `mop_train` and `mop_retrain` at work: the process of the call, its step or family, the "
    "family's trials and their least loss on validation rows, seconds left.",
    "mop_family_trials": "The trials of `boosting`, `linear` and `mlp` of all versions that the role may read; `weight`: their "
    "shares of the answer.",
    "mop_checkpoints": "Model states of ended runs. Later runs may start from them.",
}

# name -> (default where the setting has no fixed one, meaning)
SETTINGS = {
    "seed": (
        "drawn, and logged in `mop_runs`",
        "The source of all randomness: shuffling at packing, initial weights, schedule.",
    ),
    "segments": ("the GPUs, else the cores, of all servers", "Number of segments that the preprocessors make."),
    "servers": (
        "this server",
        "Servers over which the preprocessors distribute the segments, for example `w1, w2, "
        "local` ([postgres_fdw](postgres_fdw.md)).",
    ),
    "replicas": (
        None,
        "How often each segment on another server exists: with `2`, a run continues when one server is away "
        "([copies](postgres_fdw.md#copies)).",
    ),
    "trainers": ("beside the rows", "Foreign server that names the Ray cluster of the trainers ([Ray](ray.md))."),
    "server_timeout": (None, "Time that a run waits for a server that is away."),
    "scheduler": (
        None,
        "`randomized`: every visit order is equally likely, as in Cerebro, but without rounds (nearly equally likely where "
        "unit batches run in fewer sessions than there are segments). `longest-first`: the configuration with the longest "
        "remaining path, by measured times. `round-robin`, for comparison: MADlib's lockstep.",
    ),
    "chain_seconds": (
        None,
        "About how many seconds of training one command and one transaction have, a "
        "[chain](how_it_works.md#planning). `0`: no chains.",
    ),
    "cache_mb": (
        None,
        "Memory of a trainer for rows and for the outputs of frozen layers. Rows beyond it are streamed "
        "at every visit.",
    ),
    "compile_cache_mb": (
        None,
        "Disk space in the data directory, for each role, for functions that TensorFlow has "
        "traced and XLA has compiled. Later trainers load them from there. `0`: no cache.",
    ),
    "threads": (
        "cores / worker sessions",
        "Threads of one trainer. A number that is set stays the same to the run's end.",
    ),
    "gpu_memory_share": (
        "no limit",
        "Share of a device's memory that the trainers of a role take together: of each GPU with `use_gpus`, else of main "
        "memory ([packing](how_it_works.md#packing)).",
    ),
    "device_memory_mb": (
        "what nvidia-smi tells",
        "Memory of a device that a call plans with: of each GPU with `use_gpus`, else of each virtual device. A net that needs "
        "more is divided ([large models](how_it_works.md#models-that-fit-no-device)).",
    ),
    "most_devices": (
        "all GPUs of a server",
        "How many devices of a server one model may be divided among, with Keras on JAX; `1`: models are not divided. Without "
        "GPUs, the number of virtual devices ([large models](how_it_works.md#models-that-fit-no-device)).",
    ),
    "deal_threads": (
        None,
        "Whether configurations train with idle cores, too, towards the end of a run ([threads](how_it_works.md#planning)). "
        "`auto`: with cores that no other program uses at that moment. `on`: with all cores that no other run wants. `off`: "
        "threads stay as they are.",
    ),
    "keras_backend": (
        None,
        "Framework of Keras in the trainers: `tensorflow`, or `jax` or `torch` if installed (`make "
        "install WITH=jax`, `WITH=torch`; [frameworks](frameworks.md)).",
    ),
    "session_idle_timeout": (
        None,
        "Time that an idle trainer stays in the pool, with its compiled nets and rows; `0`: for as long as the "
        "server runs.",
    ),
    "fork_server_idle_timeout": (
        None,
        "Time that the fork server stays without use. It has imported Keras and forks "
        "trainers. `0`: no fork server, each trainer imports Keras itself.",
    ),
    "serving_processes": (
        None,
        "How many serving processes the sessions of a role share, at most; `0`: each session leases a trainer "
        "([serving](how_it_works.md#serving)).",
    ),
    "lock_timeout": (None, "Time that a worker session waits for a lock."),
    "sessions": (
        "one per segment",
        "Worker sessions with which a run starts: at most one per segment, at least one on "
        "each server that holds segments. `mop_set_sessions` changes the number during the run.",
    ),
    "priority": (
        None,
        "Where runs share the cores of a server, those of higher priority train first "
        "([administration](administration.md#runs-side-by-side)).",
    ),
    "deadline": ("none", "When a run should have ended ([administration](administration.md#deadlines))."),
    "resume": (None, "`on`: repeating a call resumes its unfinished run. `off`: the call starts a new run."),
    "unit_retries": (None, "Number of retries for a unit that was lost with its session or trainer."),
    "trainer_memory_mb": ("no limit", "Upper limit for the memory of a trainer."),
    "max_model_mb": ("the machine's memory", "Upper limit for the size of a model with its optimizer variables."),
    "weights_value_mb": (
        None,
        "The largest weights of a trained model that `model_weights` has as one value; larger ones are "
        "[in parts](administration.md#large-models). pg_dump needs at most `511`.",
    ),
    "kernel": (
        None,
        "How a trainer computes a pass over a segment. `loop`: one compiled loop over the batches. `xla`: "
        "the same loop, compiled by XLA. `plain`: one Keras step per batch, bit for bit equal to "
        "`train_on_batch`. `vmap`: short units of one net as one computation, only with Keras on JAX "
        "([frameworks](frameworks.md)). `auto`: the fastest kernel by measurement, starting "
        "with the best kernel of earlier runs, else with `loop`.",
    ),
    "share_prefixes": (
        None,
        "`on`: with `pg_mop.kernel = auto`, the outputs of frozen layers at the input side are "
        "computed once per segment ([transfer learning](how_it_works.md#transfer-learning)). `off`: "
        "they are computed at every visit.",
    ),
    "fit_strategy": (
        None,
        "How `madlib_keras_fit` trains its one model. `averaging`: on all segments at once, with "
        "the weights averaged after every iteration. `sequential`: the model hops.",
    ),
    "sharing": (
        None,
        "`on`: configurations share the iterations that they have in common. `off`: each configuration "
        "is trained separately.",
    ),
    "reuse": (
        None,
        "`on`: a run takes over stages that another run of the role has trained, or is about to train "
        "([runs at the same time](search.md#runs-at-the-same-time)). `off`: it trains them itself.",
    ),
    "checkpoint_mb": (None, "Disk space, for each role, for states of ended runs that later runs may start from."),
    "same_start": (
        None,
        "`on`: configurations of one architecture start with equal weights. `off`: each starts with its own.",
    ),
}
RENAMED = {"nursery_idle_timeout": "fork_server_idle_timeout"}  # old name, which still works -> name

GROUPS = {
    "Ordinary tables": ["mop_train", "mop_split", "mop_pack", "mop_architecture"],
    "Named models": [
        "mop_predict",
        "mop_probability",
        "mop_class",
        "mop_number",
        "mop_predict_into",
        "mop_deploy",
        "mop_ensemble",
        "mop_retrain",
        "mop_use_version",
        "mop_compare",
        "mop_share",
    ],
    "Reports about named models": [
        "mop_evaluate",
        "mop_confusion_matrix",
        "mop_class_report",
        "mop_regression_report",
        "mop_roc_curve",
        "mop_calibration",
        "mop_importance",
        "mop_explain_answer",
        "mop_feature_info",
        "mop_drift",
        "mop_model_report",
        "mop_baselines",
    ],
    "Packing rows": ["training_preprocessor_dl", "validation_preprocessor_dl", "mop_drop_packed"],
    "Model spaces": ["mop_space", "mop_space_size", "mop_space_sample", "mop_space_show", "mop_family"],
    "Architectures and custom functions": [
        "load_keras_model",
        "delete_keras_model",
        "mop_import_model",
        "load_custom_function",
        "load_top_k_accuracy_function",
        "delete_custom_function",
    ],
    "Configurations": ["generate_model_configs", "load_model_selection_table", "hyperband_schedule"],
    "Before and after training": ["mop_explain", "mop_explain_run"],
    "Training and search": [
        "madlib_keras_fit_multiple_model",
        "mop_fit_multiple_model",
        "madlib_keras_fit",
        "mop_search",
        "madlib_keras_automl",
        "mop_more",
        "mop_resume",
        "mop_replay",
    ],
    "During a run": ["mop_stop_trial", "mop_add_trial", "mop_set_sessions", "mop_set_priority", "mop_add_server"],
    "Sharing among roles": ["mop_share_training"],
    "Jobs": ["mop_submit", "mop_wait", "mop_cancel"],
    "Results": [
        "madlib_keras_evaluate",
        "madlib_keras_predict",
        "madlib_keras_predict_byom",
        "mop_export_model",
        "mop_export_parts",
        "mop_report",
        "mop_configuration_report",
        "mop_note",
    ],
    "Disk space of runs": ["mop_drop_run", "mop_drop_states", "mop_drop_checkpoints"],
    "Server and help": [
        "mop_functions",
        "mop_settings",
        "gpu_configuration",
        "mop_connect_servers",
        "mop_end_trainers",
        "mop_trim_audit",
    ],
}

HEAD = """\
# Reference

<!-- make reference writes this page -->

The views, settings and functions of the extension. In these documents its schema is `madlib`. A database describes its own
version:

```sql
SELECT name, about, usage FROM madlib.mop_functions();
SELECT * FROM madlib.mop_settings();
SELECT madlib.mop_search('usage');      -- the arguments of one function
SELECT madlib.mop_search('example');    -- a script that runs as it stands
```

- [Views](reference/views.md): runs, progress, units, metrics, jobs, models.
- [Settings](reference/settings.md): `SET pg_mop.seed = 42;` and so on.

"""
OF_PAGE = "<!-- make reference writes this page -->"
OF_VIEWS = """
Query the views from any session, also while a run goes on. A role sees its own runs, and the runs of the roles that it
may act as. [BI tools](bi.md) lists the columns that stay in later versions.
"""
OF_SETTINGS = """
`SET pg_mop.<name> = <value>`, or `ALTER ROLE ... SET`, `ALTER DATABASE ... SET`. PostgreSQL accepts any value. The next
call of a function reports a wrong value or an unknown name; `SELECT * FROM madlib.mop_settings();` reports it at once.
"""


def pages():
    """{path below docs: text} of the reference: an index, and a page for the views, for the settings and for each family of
    functions."""
    about = _about()
    groups = _groups(about)
    forms = signatures(
        "".join(
            path.read_text()
            for path in sorted([*(ROOT / "sql").glob("*.sql"), *(ROOT / "sql" / "postgresql").glob("*.sql")])
        )
    )
    lines = ["| page | functions |", "|---|---|"]
    for title, names in groups.items():
        page = f"reference/{slug(title)}.md"
        lines.append(f"| [{title}]({page}) | {', '.join(f'[`{name}`]({page}#{name})' for name in names)} |")
    found = {
        "reference.md": HEAD + "\n".join(lines),
        "reference/views.md": "\n".join(["# Views", "", OF_PAGE, OF_VIEWS, *_views()]),
        "reference/settings.md": "\n".join(["# Settings", "", OF_PAGE, OF_SETTINGS, *_settings()]),
    }
    for title, names in groups.items():
        own = [f"# {title}", "", OF_PAGE]
        for name in names:
            own += _function(name, about[name], forms[name])
        own += _arguments(names, forms)
        found[f"reference/{slug(title)}.md"] = "\n".join(own)
    return {path: (text if "/" not in path else _from_below(text)).rstrip() + "\n" for path, text in found.items()}


def slug(title):
    """The name of the page of a family."""
    return re.sub(r"\W+", "-", title.lower())


def _from_below(text):
    """A text with its links to other documents as they are in the folder reference/."""
    return re.sub(r"\]\((\w+\.md)", r"](../\1", text)


def _about():
    return {
        name: about.replace("<", "&lt;")
        for name, about in {**{name: about for name, (about, *_) in helps.FUNCTIONS.items()}, **helps.OF_RUNS}.items()
    }


def _groups(about):
    others = sorted(about.keys() - {name for names in GROUPS.values() for name in names})
    return {**GROUPS, **({"Others": others} if others else {})}


def _views():
    return ["| view | contents |", "|---|---|"] + [f"| `{name}` | {about} |" for name, about in VIEWS.items()]


def _settings():
    lines = ["| name | default | values | meaning |", "|---|---|---|---|"]
    known = helps.settings.KNOWN
    for name in sorted(known, key=lambda name: list(SETTINGS).index(RENAMED.get(name, name))):
        new = RENAMED.get(name)
        parser, default = known[name]
        chosen, meaning = SETTINGS[new or name]
        if new in known:
            meaning = f"The old name of `pg_mop.{new}`."
        lines.append(
            f"| `pg_mop.{name}` | {f'`{default}`' if default else chosen} | {parser.description} | {meaning} |"
        )
    return lines


def _function(name, about, forms):
    """The lines of a function's section."""
    lines = ["", f"## {name}", "", about, "", "```text"]
    lines += [_call(verb, name, arguments) for verb, arguments in _joined(forms)] + ["```"]
    if name in helps.FUNCTIONS:
        lines += ["", "```sql", helps.FUNCTIONS[name][1].strip().format(schema="madlib"), "```"]
    return lines


def _arguments(names, forms):
    """What the arguments of a page's functions mean, each once."""
    about = {}
    for name in names:
        for argument in dict.fromkeys(argument.split()[0].strip('"') for _, own in forms[name] for argument in own):
            told = helps.ARGUMENTS.get(f"{name}.{argument}")
            if told or argument in helps.ARGUMENTS:
                about[argument, told or _here(helps.ARGUMENTS[argument], names)] = None
    lines = (f"- `{argument}`: {text.replace('<', '&lt;')}" for argument, text in sorted(about))
    return ["", "## Arguments", "", *lines] if about else []


def _here(about, names):
    """An argument's text without the parts about other functions than these: 'a model; mop_import_model: the bytes'."""
    known = {*helps.FUNCTIONS, *helps.OF_RUNS}
    parts = []
    for part in about.split("; "):
        of = set(part.partition(": ")[0].split(", "))
        if not of <= known or of & set(names):
            parts.append(part)
    return "; ".join(parts)


def _joined(forms):
    """The forms; those that differ only in an argument's type are one."""
    joined = {}
    for verb, arguments in forms:
        joined.setdefault((verb, *(argument.split()[0] for argument in arguments)), []).append(arguments)
    for (verb, *_), alike in joined.items():
        yield verb, [_of_types(same) for same in zip(*alike)]


def _of_types(same):
    """One argument of several forms, with all of its types."""
    types = dict.fromkeys(argument.split(" DEFAULT ")[0].split(" ", 1)[1] for argument in same if " " in argument)
    name, default = (
        same[0].split()[0],
        next((f" DEFAULT {d}" for _, d in (a.split(" DEFAULT ") for a in same if " DEFAULT " in a)), ""),
    )
    return f"{name} {' | '.join(types)}{default}" if types else same[0]


def signatures(sql):
    """{name: [(verb, [argument, ...]), ...]} of the functions and procedures that some SQL creates."""
    found = {}
    for kind, name, arguments, result in re.findall(
        r"^CREATE (FUNCTION|PROCEDURE) @extschema@\.(\w+)\(((?:[^()]|\([^()]*\))*)\)\s*(?:RETURNS ([^\n]*))?", sql, re.M
    ):
        verb = "CALL" if kind == "PROCEDURE" else "SELECT * FROM" if result.startswith("SETOF") else "SELECT"
        wanted = [
            part
            for part in re.split(r",\s*(?![^()]*\))", " ".join(arguments.split()))
            if part and not part.startswith(("OUT ", "token "))
        ]
        wanted = [part.replace("@extschema@.mop_source", "text") for part in wanted]
        if '"row" text' not in wanted:  # (the form that refuses texts)
            found.setdefault(name, []).append((verb, wanted))
    return found


def _call(verb, name, arguments):
    """A call on one line, or with one line per argument if it is long. Arguments that must be integers are shown as
    integers."""
    arguments = [
        argument.replace("double precision", "integer") if argument.split()[0] in helps.ALL_INTEGERS else argument
        for argument in arguments
    ]
    line = f"{verb} madlib.{name}({', '.join(arguments)})"
    return line if len(line) <= 90 else f"{verb} madlib.{name}(\n    " + ",\n    ".join(arguments) + ")"


def write(docs):
    """Write the pages below a folder, and remove those of families that are gone."""
    made = pages()
    for path in (docs / "reference").glob("*.md"):
        if f"reference/{path.name}" not in made:
            path.unlink()
    for name, text in made.items():
        (docs / name).parent.mkdir(exist_ok=True)
        (docs / name).write_text(text, encoding="utf-8")


def with_nav(text):
    """The text of mkdocs.yml with all pages of the reference in its part of the nav."""
    own = "".join(f"      - {path}\n" for path in pages())
    return re.sub(r"(?m)^(  - Reference:\n)(?:      - .*\n)*", lambda found: found[1] + own, text)


if __name__ == "__main__":
    write(ROOT / "docs")
    site = ROOT / "mkdocs.yml"
    site.write_text(with_nav(site.read_text(encoding="utf-8")), encoding="utf-8")
