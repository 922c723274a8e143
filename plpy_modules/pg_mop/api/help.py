"""What the functions say of themselves: no argument, 'usage' (or 'help', '?'), 'example'.

The usage is read from the catalog, so that it is always that of the installed version.
"""

import re

from pg_mop.backend import settings
from pg_mop.backend.database import ALL_INTEGERS, MopError, sql_function

# function -> (what it does, SQL of its example after the data of DATA, whether that needs trained models)
FUNCTIONS = {
    "training_preprocessor_dl": (
        "Packs training rows into buffers, shuffled, one partition for each segment.",
        """
SELECT {schema}.training_preprocessor_dl('flowers', 'packed', 'kind', 'petals', 50, 1.0);
SELECT __dist_key__ AS segment, buffer_id, petals_shape, kind_shape FROM packed ORDER BY buffer_id;
SELECT kind_class_values, buffer_size, num_classes FROM packed_summary;
""",
        False,
    ),
    "validation_preprocessor_dl": (
        "Packs validation rows into buffers, encoded and scaled as a training table is.",
        """
SELECT {schema}.validation_preprocessor_dl('flowers', 'packed', 'kind', 'petals', 'flowers_packed');
SELECT __dist_key__ AS segment, buffer_id, petals_shape, kind_shape FROM packed ORDER BY buffer_id;
""",
        False,
    ),
    "load_keras_model": (
        "Appends an architecture, the JSON that Keras' Model.to_json() writes, to a table.",
        """
SELECT {schema}.load_keras_model('architectures', (SELECT model_arch FROM flower_arch), NULL, 'net', 'a copy');
SELECT model_id, name, description FROM architectures;
""",
        False,
    ),
    "delete_keras_model": (
        "Deletes an architecture; the table goes with its last row.",
        """
SELECT {schema}.delete_keras_model('flower_arch', 1);
""",
        False,
    ),
    "load_custom_function": (
        "Stores a loss or metric: a Python function (y_true, y_pred) pickled by dill. For superusers.",
        """
SELECT {schema}.load_custom_function('flower_functions', {schema}.top_k_categorical_acc_pickled(2, 'top_2'), 'top_2');
SELECT id, name, description FROM {schema}.flower_functions;
SELECT {schema}.delete_custom_function('flower_functions', 1);
""",
        False,
    ),
    "delete_custom_function": (
        "Deletes a custom loss or metric by id or name; the table goes with its last row. For superusers.",
        """
SELECT {schema}.load_top_k_accuracy_function('flower_functions', 2);
SELECT {schema}.delete_custom_function('flower_functions', 'top_2_accuracy'::text);
""",
        False,
    ),
    "load_top_k_accuracy_function": (
        "Stores the metric top_<k>_accuracy. For superusers.",
        """
SELECT {schema}.load_top_k_accuracy_function('flower_functions', 2);
SELECT id, name, description FROM {schema}.flower_functions;
SELECT {schema}.delete_custom_function('flower_functions', 'top_2_accuracy'::text);
""",
        False,
    ),
    "load_model_selection_table": (
        "Makes a model selection table of every combination of ids, compile and fit parameters.",
        """
SELECT {schema}.load_model_selection_table('flower_arch', 'selection', ARRAY[1],
    ARRAY[$$loss='categorical_crossentropy', optimizer='Adam(lr=0.01)', metrics=['accuracy']$$,
          $$loss='categorical_crossentropy', optimizer='SGD(lr=0.1)', metrics=['accuracy']$$],
    ARRAY['batch_size=8, epochs=1', 'batch_size=16, epochs=1']);
SELECT * FROM selection ORDER BY mst_key;
""",
        False,
    ),
    "generate_model_configs": (
        "Makes a model selection table, or adds to one, from a grid of parameters or a random sample of it.",
        """
SELECT {schema}.generate_model_configs('flower_arch', 'selection', ARRAY[1],
    $${{'loss': ['categorical_crossentropy'], 'metrics': ['accuracy'],
       'optimizer_params_list': [{{'optimizer': ['Adam', 'SGD'], 'learning_rate': [0.001, 0.1, 'log']}}]}}$$,
    $${{'batch_size': [8, 16], 'epochs': [1]}}$$, 'random', 5, 42);
SELECT * FROM selection ORDER BY mst_key;
""",
        False,
    ),
    "madlib_keras_fit_multiple_model": (
        "Trains many neural-network configurations at once on data that stays where it is (model hopper parallelism).",
        """
-- watch it from another session: SELECT * FROM {schema}.mop_progress;
SELECT {schema}.madlib_keras_fit_multiple_model('flowers_packed', 'models', 'flower_mst', 5, FALSE);
SELECT mst_key, compile_params, training_metrics_final, training_loss_final
FROM models_info ORDER BY training_loss_final NULLS LAST;
SELECT {schema}.madlib_keras_predict('models', 'flowers', 'id', 'petals', 'predictions', 'response', FALSE,
    (SELECT mst_key FROM models_info ORDER BY training_loss_final NULLS LAST LIMIT 1));
SELECT * FROM predictions ORDER BY id LIMIT 5;
""",
        False,
    ),
    "mop_fit_multiple_model": (
        "Is madlib_keras_fit_multiple_model as a procedure: VACUUM of other tables goes on while it trains.",
        """
CALL {schema}.mop_fit_multiple_model('flowers_packed', 'models', 'flower_mst', 5, FALSE);
SELECT mst_key, compile_params, training_metrics_final, training_loss_final
FROM models_info ORDER BY training_loss_final NULLS LAST;
""",
        False,
    ),
    "mop_search": (
        "Searches a space of configurations: a procedure proposes some, trains on what is good, and stops the rest.",
        """
-- watch it from another session: SELECT * FROM {schema}.mop_trials;
SELECT {schema}.mop_search('flowers_packed', 'found', 'flower_arch',
    $${{'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']], 'batch_size': [8, 16, 32],
       'optimizer_params_list': [{{'optimizer': ['Adam'], 'lr': [0.001, 0.1, 'log']}},
                                 {{'optimizer': ['SGD'], 'lr': [0.01, 0.5, 'log'], 'momentum': [0.5, 0.9]}}]}}$$,
    'asha', 'trials=8, iterations=4, reduction=2', metric => 'accuracy');
SELECT mst_key, compile_params, fit_params, status, iterations, metric_best, reason FROM found_trials
ORDER BY metric_best DESC NULLS LAST;
SELECT procedure, metric, best_mst_key FROM found_summary;
""",
        False,
    ),
    "madlib_keras_automl": (
        "Searches grids of parameters for the configuration of least loss, as MADlib does: by hyperband or hyperopt.",
        """
SELECT {schema}.madlib_keras_automl('flowers_packed', 'found', 'flower_arch', 'best', ARRAY[1],
    $${{'loss': ['categorical_crossentropy'], 'metrics': ['accuracy'],
       'optimizer_params_list': [{{'optimizer': ['Adam', 'SGD'], 'lr': [0.001, 0.1, 'log']}}]}}$$,
    $${{'batch_size': [8, 16], 'epochs': [1]}}$$, 'hyperband', 'R=3, eta=3, skip_last=0', 42);
SELECT mst_key, s, i, metrics_iters, training_loss_final FROM found_info ORDER BY training_loss_final NULLS LAST;
SELECT * FROM best;
""",
        False,
    ),
    "hyperband_schedule": (
        "Writes a table of madlib_keras_automl's hyperband: of bracket s and round i, the configurations n_i and the "
        "iterations r_i.",
        """
SELECT {schema}.hyperband_schedule('schedule', 81, 3, 0);
SELECT * FROM schedule ORDER BY s DESC, i;
""",
        False,
    ),
    "mop_stop_trial": (
        "Stops a configuration of a run that goes on, from another session, after the iteration that it is in.",
        """
-- while a run goes on, in another session: stop what is far behind
SELECT {schema}.mop_stop_trial(run_id, mst_key) FROM {schema}.mop_progress
WHERE status IN ('running', 'waiting') AND iteration >= 3 AND last_loss > 2;
""",
        False,
    ),
    "mop_add_trial": (
        "Adds a configuration to a run that goes on, from another session.",
        """
-- while a run goes on, in another session
SELECT {schema}.mop_add_trial(run_id, 1,
    $$loss='categorical_crossentropy', optimizer='Adam(lr=0.02)', metrics=['accuracy']$$, 'batch_size=16', 3)
FROM {schema}.mop_runs WHERE status = 'running';
""",
        False,
    ),
    "mop_more": (
        "Trains a configuration of a run that has ended for so many iterations more, and updates its output tables.",
        """
SELECT mst_key, iteration, training_loss_final FROM flower_models_info ORDER BY training_loss_final;
SELECT {schema}.mop_more((SELECT max(run_id) FROM {schema}.mop_runs), 1, 2);
SELECT mst_key, iteration, training_loss_final FROM flower_models_info ORDER BY training_loss_final;
""",
        True,
    ),
    "madlib_keras_fit": (
        "Trains one model on all segments at once, averaging their weights, or (SET pg_mop.fit_strategy = 'sequential')"
        " one after the other.",
        """
SELECT {schema}.madlib_keras_fit('flowers_packed', 'model', 'flower_arch', 1,
    $$loss='categorical_crossentropy', optimizer='Adam(lr=0.05)', metrics=['accuracy']$$, 'batch_size=8', 5);
SELECT metrics_iters, training_metrics_final, training_loss_final FROM model_summary;
""",
        False,
    ),
    "madlib_keras_evaluate": (
        "Computes loss and metric of a trained model on a packed table.",
        """
SELECT {schema}.madlib_keras_evaluate('flower_models', 'flowers_packed', 'scores', FALSE, 1);
SELECT * FROM scores;
""",
        True,
    ),
    "madlib_keras_predict": (
        "Predicts raw rows with a trained model.",
        """
SELECT {schema}.madlib_keras_predict('flower_models', 'flowers', 'id', 'petals', 'predictions', 'prob', FALSE, 1);
SELECT * FROM predictions ORDER BY id, rank LIMIT 6;
""",
        True,
    ),
    "madlib_keras_predict_byom": (
        "Predicts raw rows with an architecture and weights of one's own.",
        """
SELECT {schema}.load_keras_model('own', m.model_arch, m.model_weights) FROM flower_models m WHERE mst_key = 1;
SELECT {schema}.madlib_keras_predict_byom('own', 1, 'flowers', 'id', 'petals', 'predictions', 'response', FALSE,
    ARRAY['iris', 'rose', 'tulip']);
SELECT * FROM predictions ORDER BY id LIMIT 5;
""",
        True,
    ),
    "mop_export_model": (
        "Gives a trained model as the bytes of a .keras file; mst_key is NULL for a single model.",
        """
SELECT length({schema}.mop_export_model('flower_models', 1));
-- into a file:
-- psql -Atc "SELECT encode({schema}.mop_export_model('flower_models', 1), 'hex')" | xxd -r -p > model.keras
""",
        True,
    ),
    "mop_import_model": (
        "Appends the architecture and weights of a .keras file (bytes) to an architecture table; returns its model_id.",
        """
SELECT {schema}.mop_import_model('own', {schema}.mop_export_model('flower_models', 1), 'imported');
SELECT model_id, name, length(model_weights) FROM own;
""",
        True,
    ),
    "gpu_configuration": (
        "Writes a table (hostname, gpu_descr) of the server's GPUs, as TensorFlow or NVIDIA's driver tell of them.",
        """
SELECT {schema}.gpu_configuration('gpus');
SELECT * FROM gpus;
""",
        False,
    ),
}

# what is done with runs, and has no help of its own: README's table says the same
OF_RUNS = {
    "mop_resume": "Goes on with a run that was cancelled, failed or rolled back.",
    "mop_replay": "Trains again as a finished run did, in its visit order, into new tables (not of searches).",
    "mop_report": "Gives a report of a run, one HTML file, or as 'json' its data; of all configurations, or of some.",
    "mop_submit": "Runs SQL in a session of its own that needs no client, and gives the number of the job at once.",
    "mop_cancel": "Cancels a job.",
    "mop_wait": "Waits until a job has ended, or until a timeout: its status.",
    "mop_set_sessions": "Gives a run that is running more or fewer worker sessions.",
    "mop_drop_run": "Deletes a run: its log and its model states.",
    "mop_drop_states": "Frees the disk of a run that will not go on, and keeps its log.",
    "mop_drop_packed": "Drops a packed table with what it has on other servers.",
    "mop_connect_servers": "Lets servers reach one another, so that states go straight (superusers).",
    "mop_drop_checkpoints": "Drops a run's kept states; without an argument all of the role's.",
    "mop_settings": "Lists the settings pg_mop.*, as they are in force, and says what is wrong with one.",
    "mop_functions": "Lists these functions, with what they are for and take.",
}
# what trains: such a call takes long, and is a run
TRAINS = {
    "madlib_keras_fit_multiple_model",
    "mop_fit_multiple_model",
    "madlib_keras_fit",
    "mop_search",
    "madlib_keras_automl",
    "mop_more",
    "mop_resume",
    "mop_replay",
}

DATA = """\
-- 150 flowers of three kinds (made up), packed into segments; an architecture; four configurations of it
BEGIN;
CREATE TABLE flowers AS
SELECT i AS id, ARRAY[1 + i % 3 + random() / 2, 3 - i % 3 + random() / 2, random(), random()]::real[] AS petals,
       ('{{rose,tulip,iris}}'::text[])[1 + i % 3] AS kind
FROM generate_series(1, 150) AS i;
SELECT {schema}.training_preprocessor_dl('flowers', 'flowers_packed', 'kind', 'petals');
SELECT {schema}.load_keras_model('flower_arch', '{{"class_name": "Sequential", "config": {{"name": "net", "layers": [
    {{"class_name": "Dense", "config": {{"name": "hidden", "units": 16, "activation": "relu",
                                       "batch_input_shape": [null, 4]}}}},
    {{"class_name": "Dense", "config": {{"name": "out", "units": 3, "activation": "softmax"}}}}]}}}}');
SELECT {schema}.generate_model_configs('flower_arch', 'flower_mst', ARRAY[1],
    $${{'loss': ['categorical_crossentropy'], 'metrics': ['accuracy'],
       'optimizer_params_list': [{{'optimizer': ['Adam', 'SGD'], 'learning_rate': [0.01, 0.1]}}]}}$$,
    $${{'batch_size': [16], 'epochs': [1]}}$$, 'grid');
COMMIT;  -- worker sessions see what is committed
"""
TRAINED = """\
SELECT {schema}.madlib_keras_fit_multiple_model('flowers_packed', 'flower_models', 'flower_mst', 3, FALSE);
"""

# what an argument means, where its name does not say it
ARGUMENTS = {
    "automl_method": "'hyperband' or 'hyperopt'",
    "automl_params": "R, eta, skip_last of hyperband; num_configs, num_iterations, algorithm of hyperopt",
    "buffer_size": "rows of a buffer, a request; NULL: as large as fits",
    "class_values": "classes in the order of the model's outputs; NULL: '0', '1', ...",
    "command": "SQL, such as a call of these functions",
    "compile_params": "as for Keras' compile: loss='...', optimizer='Adam(lr=0.01)', metrics=['...']",
    "compile_params_grid": "a Python dictionary of lists: loss, metrics, optimizer_params_list, ...",
    "compile_params_list": "strings as for Keras' compile",
    "continue_from": "run_id of an earlier run whose results the procedure is told first",
    "dependent_dtype": "'int16': classes, one-hot; 'float32': numbers as they are, for regression or soft labels",
    "dependent_varname": "label column, or a comma list of them: one for each output of the model",
    "distribution_rules": "ignored on PostgreSQL: the setting pg_mop.segments says how many there are",
    "eta": "one in so many goes on from each round",
    "format": "'html' or 'json'",
    "fit_params": "as for Keras' fit: batch_size=32, epochs=1, class_weight={...}, stop={...}, keep='best'",
    "fit_params_grid": "a Python dictionary of lists: batch_size, epochs, ...",
    "fit_params_list": "strings as for Keras' fit",
    "id_col": "column that identifies a row",
    "independent_varname": "numeric array column, or a comma list of them: one for each input of the model",
    "iterations": "in mop_more so many more; in mop_add_trial all, NULL: as many as the run's others may get",
    "k": "how many of the most probable classes count",
    "keras_model_arch_table": "made where it does not exist",
    "max_trials": "configurations at most",
    "metric": "'loss', or one of the configurations' metrics: 'accuracy', 'training_loss', 'mine max'",
    "metrics_compute_frequency": "after every so many iterations; NULL: after the last only",
    "model": "in mop_import_model the bytes of a .keras file, else the table to be made, with <name>_summary",
    "model_arch": "JSON of Keras 2 or 3",
    "model_id": "id of an architecture",
    "model_id_list": "ids of architectures",
    "model_output_table": "to be made, with <name>_info and <name>_summary",
    "model_selection_table": "from generate_model_configs or load_model_selection_table",
    "model_weights": "bytes of float32, in the order of get_weights()",
    "mst_key": "which configuration of a run, or which model of a table of several",
    "normalizing_const": "divides the independent elements",
    "num_classes": "one-hot width for each output; NULL: as many as the data have",
    "num_configs": "random search: how many",
    "num_iterations": "visits of every configuration to every segment",
    "object": "dill.dumps(function)",
    "object_table": "custom losses and metrics, in this schema",
    "pred_type": "'prob', 'response', how many best classes, or the least probability",
    "procedure": "'asha', 'grid', 'random', 'hyperband', ...: docs/search.md has them all",
    "procedure_params": "name = value, ...: docs/search.md",
    "r": "iterations of what is left at the end",
    "random_state": "the seed of what is drawn",
    "run_id": "SELECT run_id, status FROM mop_runs",
    "schedule_table": "to be made",
    "search_type": "'grid' or 'random'",
    "skip_last": "rounds to leave out at the end of every bracket",
    "source": "'tensorflow' or 'nvidia'",
    "source_table": "preprocessors: a row for each example; training: a packed table",
    "space": "Python dictionary of lists (loss, metrics, optimizer_params_list, batch_size, ..., model_id); or several",
    "test_table": "evaluate: a packed table; predict: a row for each example",
    "time_limit": "after that nothing more is begun",
    "training_preprocessor_table": "packed table of training_preprocessor_dl",
    "use_caching": "accepted; rows are always kept in memory while they fit",
    "warm_start": "go on from the tables of an earlier call, and replace them",
}


@sql_function
def answer(db, name, message):
    """What function `name` says to `message`."""
    word = (message or "").strip().lower()
    about, example, trained = FUNCTIONS[name]
    schema = _written(db)
    if word in ("usage", "help", "?"):
        return f"{about}\n\n{_usage(db, name, schema)}"
    if word in ("example", "examples"):
        return (DATA + (TRAINED if trained else "") + example).format(schema=schema)
    if word and name.startswith("mop_"):
        raise MopError(f"{name} takes more than one argument", hint=f"SELECT {schema}.{name}('usage');")
    if word:
        return f"no such option {message!r}: try 'usage' or 'example'"
    return (
        f"{about}\nFor the arguments:             SELECT {schema}.{name}('usage');\n"
        f"For a script that runs as is:  SELECT {schema}.{name}('example');\n"
    )


@sql_function
def mop_functions(db):
    """(name, trains, about, usage) of every function for users, as those know it, in order of their names."""
    schema = _written(db)
    there = {
        row["proname"]
        for row in db.execute(
            "SELECT proname FROM pg_proc WHERE pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)",
            ["text"],
            [db.schema],
        )
    }
    return [
        (name, name in TRAINS, about, _usage(db, name, schema))
        for name, about in sorted({**{name: said[0] for name, said in FUNCTIONS.items()}, **OF_RUNS}.items())
        if name in there
    ]


@sql_function
def mop_settings(db):
    """(name, value, default, what it takes) of every setting; value and default are None where it is chosen when it is
    used. Raises MopError for a bad value or an unknown name."""
    texts = settings.given(db)
    settings.parsed(texts)
    return [
        (f"pg_mop.{name}", texts.get(name) or default, default, parse.wanted)
        for name, (parse, default) in settings.KNOWN.items()
    ]


def _written(db):
    """The extension's schema as people write it."""
    return db.schema if re.fullmatch(r"[a-z_][a-z0-9_]*", db.schema) else db.extension


def _usage(db, name, schema):
    """The function's arguments, with their types and defaults; where it has several forms, the types of all."""
    found = db.execute(
        # (before PostgreSQL 11 there are no procedures, and no column that tells of them)
        "SELECT row_to_json(p) ->> 'prokind' AS prokind, proretset, pg_get_function_arguments(oid) AS arguments "
        "FROM pg_proc p WHERE proname = $1 AND "
        "pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = $2) AND proargnames <> ARRAY['message'] "
        "ORDER BY oid",
        ["text", "text"],
        [name, db.schema],
    )
    verb = "CALL" if found[0]["prokind"] == "p" else "SELECT * FROM" if found[0]["proretset"] else "SELECT"
    forms = [[a for a in row["arguments"].split(", ") if a and not a.startswith("OUT ")] for row in found]
    forms = [form for form in forms if len(form) == max(map(len, forms))]
    lines = []
    for position in range(len(forms[0])):
        names, kinds = {}, {}  # of all forms, in order
        for form in forms:
            text = form[position].removeprefix("IN ").replace("character varying", "varchar").replace(" DEFAULT ", ", ")
            name_, kind = re.sub(r"::(varchar|text)", "", text).split(" ", 1)
            if name_ in ALL_INTEGERS:
                kind = kind.replace("double precision", "integer")  # of any type, see database.as_integer
            names[name_] = kinds[kind] = True
        argument = " or ".join(names) + ("," if position < len(forms[0]) - 1 else "")
        said = f": {ARGUMENTS[name_]}" if name_ in ARGUMENTS else ""
        lines.append(f"    {argument:<29} -- {' or '.join(kinds)}{said}")
    usage = f"{verb} {schema}.{name}(" + "".join("\n" + line for line in lines) + ("\n);\n" if lines else ");\n")
    if name in TRAINS and name not in OF_RUNS and name != "mop_more":
        if verb == "SELECT" and "multiple" in name:
            usage += (
                f"\nFor hours: CALL {schema}.mop_fit_multiple_model(...), of the same arguments, does not hold "
                f"back VACUUM.\n"
            )
        usage += (
            f"\nWatch:     {schema}.mop_runs, mop_progress, mop_trials, mop_stages, mop_units, "
            f"mop_visit_order (from another session)\n"
            f"Settings:  (SET name = value) {', '.join(f'pg_mop.{n}' for n in settings.KNOWN)}\n"
        )
    return usage
