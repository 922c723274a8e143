"""What the functions say of themselves when they are called without work to do."""

import re

from pg_mop import settings
from pg_mop.database import sql_function

FIT_MULTIPLE = """\
Trains many neural-network configurations at once on data that stays where it is (model hopper parallelism).
For the arguments:             SELECT {schema}.madlib_keras_fit_multiple_model('usage');
For a script that runs as is:  SELECT {schema}.madlib_keras_fit_multiple_model('example');
"""

FIT_MULTIPLE_USAGE = """\
SELECT {schema}.madlib_keras_fit_multiple_model(
    source_table,               -- VARCHAR: packed by training_preprocessor_dl
    model_output_table,         -- VARCHAR: to be made, with <name>_info and <name>_summary
    model_selection_table,      -- VARCHAR: from generate_model_configs or load_model_selection_table
    num_iterations,             -- INTEGER: visits of every configuration to every segment
    use_gpus,                   -- BOOLEAN
    validation_table,           -- VARCHAR, NULL: packed by validation_preprocessor_dl
    metrics_compute_frequency,  -- INTEGER, NULL: after every so many iterations; NULL: after the last only
    warm_start,                 -- BOOLEAN, FALSE: not supported yet
    name, description,          -- VARCHAR, NULL: free text
    use_caching                 -- BOOLEAN, FALSE: accepted; rows are always kept in memory while they fit
);

Output: <model_output_table>          mst_key, model_weights, model_arch, __dist_key__
        <model_output_table>_info     a row for each configuration: parameters, losses, metrics, error
        <model_output_table>_summary  one row: the arguments, names, class values, times
Watch:  {schema}.mop_runs, mop_progress, mop_units, mop_visit_order (from another session, while it runs)
Settings (SET name = value): {settings}
"""

FIT_MULTIPLE_EXAMPLE = """\
-- 150 flowers of three kinds (made up), packed into segments
BEGIN;
CREATE TABLE flowers AS
SELECT i AS id, ARRAY[1 + i % 3 + random() / 2, 3 - i % 3 + random() / 2, random(), random()]::real[] AS petals,
       ('{{rose,tulip,iris}}'::text[])[1 + i % 3] AS kind
FROM generate_series(1, 150) AS i;
SELECT {schema}.training_preprocessor_dl('flowers', 'flowers_packed', 'kind', 'petals');

-- one architecture
SELECT {schema}.load_keras_model('flower_arch', '{{"class_name": "Sequential", "config": {{"name": "net", "layers": [
    {{"class_name": "Dense", "config": {{"name": "hidden", "units": 16, "activation": "relu",
                                       "batch_input_shape": [null, 4]}}}},
    {{"class_name": "Dense", "config": {{"name": "out", "units": 3, "activation": "softmax"}}}}]}}}}');

-- four configurations of it
SELECT {schema}.generate_model_configs('flower_arch', 'flower_mst', ARRAY[1],
    $${{'loss': ['categorical_crossentropy'], 'metrics': ['accuracy'],
       'optimizer_params_list': [{{'optimizer': ['Adam', 'SGD'], 'learning_rate': [0.01, 0.1]}}]}}$$,
    $${{'batch_size': [16], 'epochs': [1]}}$$, 'grid');

COMMIT;  -- the worker sessions see what is committed

-- train them all, then look
SELECT {schema}.madlib_keras_fit_multiple_model('flowers_packed', 'flower_models', 'flower_mst', 5, FALSE);
SELECT mst_key, compile_params, training_metrics_final, training_loss_final
FROM flower_models_info ORDER BY training_loss_final;
SELECT {schema}.madlib_keras_predict('flower_models', 'flowers', 'id', 'petals', 'flower_predictions', 'response',
    FALSE, (SELECT mst_key FROM flower_models_info ORDER BY training_loss_final LIMIT 1));
SELECT * FROM flower_predictions ORDER BY id LIMIT 5;
"""


@sql_function
def fit_multiple(db, message):
    """Help, usage or the example of madlib_keras_fit_multiple_model, by `message`."""
    texts = {"": FIT_MULTIPLE, "usage": FIT_MULTIPLE_USAGE, "help": FIT_MULTIPLE_USAGE, "?": FIT_MULTIPLE_USAGE,
             "example": FIT_MULTIPLE_EXAMPLE, "examples": FIT_MULTIPLE_EXAMPLE}
    word = (message or "").strip().lower()
    if word not in texts:
        return f"no such option {message!r}: try 'usage' or 'example'"
    return texts[word].format(schema=db.schema if _plain(db.schema) else db.extension,
                              settings=", ".join(f"pg_mop.{n}" for n in settings.KNOWN))


def _plain(name):
    """True for a name that SQL reads back without quotes."""
    return re.fullmatch(r"[a-z_][a-z0-9_]*", name) is not None
