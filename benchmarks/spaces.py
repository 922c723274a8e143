"""Searches over a space of models, compared by training units, for several seeds. Prints a table.

At equal numbers of units: evolution whose children inherit weights, evolution whose children begin anew, and random search;
one-shot search, and random search of longer trials.

    demo/run.sh space; .local/venv/bin/python benchmarks/spaces.py "$(make -s dsn)"
    PYTHONPATH=plpy_modules:. .local/venv/bin/python benchmarks/spaces.py --large    # a space of 10^12 members, no server
    .local/venv/bin/python benchmarks/spaces.py --large "$(make -s dsn)"             # the same in SQL

It takes the tables of the demo (digits_train_packed, digits_val_packed, digit_space). A search's answer is the best accuracy on
the validation rows that any of its trials has at its end.
"""

import argparse
import json
import statistics
import time

import psycopg2

SPACE = """{'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']], 'batch_size': [32],
    'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.001, 0.003]}]}"""
EVOLUTION = "population=16, tournament=4, trials={trials}, iterations={iterations}, parallel=4"
ASHA = "trials={trials}, iterations=9, reduction=3, parallel=4"
CONTENDERS = {
    "inherited": ("regularized-evolution", EVOLUTION + ", inherit=on"),
    "evolution": ("regularized-evolution", EVOLUTION),
    "random": ("random", "trials={trials}, iterations={iterations}"),
    "asha": ("asha", ASHA),
    # 400 units each: two super-nets of 60 iterations and 8 members of 10, or 20 members of 10
    "one-shot": ("one-shot", "iterations=60, candidates=200, retrain=8, retrain_iterations=10"),
    "long": ("random", "trials=20, iterations=10"),
}
ONE_RATE = ("one-shot", "long")  # contenders with one learning rate
TABLES = ("", "_info", "_summary", "_trials", "_one_shot")
BLOCKS, SAMPLED = 5, 1000  # of the large space: blocks of two layers; members that are drawn


def main():
    """Run the searches and print their best results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dsn", nargs="?")
    parser.add_argument("--large", action="store_true", help="time a space of 10^12 members instead")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--contenders", nargs="*", default=list(CONTENDERS), choices=list(CONTENDERS))
    asked = parser.parse_args()
    if asked.large:
        large(asked.dsn)
        return
    if asked.dsn is None:
        parser.error("the searches need a dsn")
    connection = psycopg2.connect(asked.dsn)
    connection.autocommit = True
    print(
        f"{asked.trials} trials of {asked.iterations} iterations each; best validation accuracy, its loss, units, seconds"
    )
    best = {}
    for seed in range(1, asked.seeds + 1):
        for name in asked.contenders:
            found = best[name, seed] = search(connection, name, seed, asked)
            print(f"seed {seed}  {name:10} {found[0]:.4f}  {found[1]:.4f}  {found[2]:6}  {found[3]:7.1f}", flush=True)
    for name in asked.contenders:
        mean = statistics.fmean(best[name, seed][0] for seed in range(1, asked.seeds + 1))
        line = f"{name:10} mean {mean:.4f}"
        other = "long" if name in ONE_RATE else "random"
        if name != other and other in asked.contenders:
            # (more accurate; of equal accuracies, the smaller loss of the best trial)
            wins = sum(
                (best[name, seed][0], -best[name, seed][1]) > (best[other, seed][0], -best[other, seed][1])
                for seed in range(1, asked.seeds + 1)
            )
            line += f", better than {other} in {wins} of {asked.seeds} seeds"
        print(line)


def large_space():
    """(architecture JSON, mutators JSON) of a space with more than 10^12 members: a convolutional net of several blocks."""

    def layer(kind, name, **config):
        return {"class_name": kind, "config": {"name": name, **config}}

    same = {"kernel_size": 3, "padding": "same", "activation": "relu"}
    layers = [layer("Conv2D", "conv1", filters=8, batch_input_shape=[None, 32, 32, 3], **same)]
    layers += [layer("Conv2D", f"conv{number}", filters=8, **same) for number in range(2, BLOCKS + 1)]
    layers += [layer("MaxPooling2D", "pool"), layer("Flatten", "flat"), layer("Dense", "hidden", units=32)]
    layers += [layer("Dense", "out", units=10, activation="softmax")]
    mutators = [
        {"change": "insert", "match": "conv*", "choices": [None, {"class": "BatchNormalization"}]},
        {"change": "repeat", "match": "conv*", "times": [1, 2]},
        {"change": "value", "match": {"class": "Conv2D"}, "argument": "filters", "choices": [4, 8, 16, 24]},
        {"change": "value", "match": {"class": "Conv2D"}, "argument": "kernel_size", "choices": [1, 3, 5]},
        {"change": "layer", "match": "pool", "choices": ["keep", {"class": "AveragePooling2D", "pool_size": 2}, None]},
        {"change": "repeat", "match": "hidden", "times": [0, 1, 2]},
        {"change": "value", "match": "hidden*", "argument": "units", "choices": [16, 32, 64]},
    ]
    made = {"class_name": "Sequential", "config": {"name": "large", "layers": layers}}
    return json.dumps(made), json.dumps(mutators)


def large(dsn):
    """Print how long it takes to describe a space of more than 10^12 members, and to draw and check SAMPLED of them: in
    a server (`dsn`), or without one."""
    architecture, mutators = large_space()
    began = time.monotonic()
    if dsn is None:
        from pg_mop.spaces import Base, ModelSpace

        space = ModelSpace([Base(1, architecture)], mutators)
        size, described = space.size, time.monotonic() - began
        began, busy = time.monotonic(), time.process_time()
        drawn = len(space.sample(SAMPLED, 1).members)
        looked = f" ({time.process_time() - busy:.1f} s of a processor)"
    else:
        connection = psycopg2.connect(dsn)
        with connection.cursor() as cursor:  # (nothing is committed)
            cursor.execute("SELECT madlib.load_keras_model('large_nets', %s::json)", [architecture])
            began = time.monotonic()
            cursor.execute("SELECT madlib.mop_space('large_space', 'large_nets', ARRAY[1], %s::text)", [mutators])
            size, described = int(cursor.fetchone()[0]), time.monotonic() - began
            began = time.monotonic()
            cursor.execute("SELECT member FROM madlib.mop_space_sample('large_space', %s, 1)", [SAMPLED])
            drawn = len(cursor.fetchall())
        connection.rollback()
        looked = ""
    seconds = time.monotonic() - began
    assert size > 10**12, size
    of_them = "" if dsn is None else " and 1,000 of them looked at"
    print(
        f"{size} members described{of_them} in {described:.3f} s; {drawn} drawn and checked in {seconds:.1f} s{looked}"
    )


def search(connection, name, seed, asked):
    """(best accuracy, its loss, training units, seconds) of a contender with a seed."""
    procedure, parameters = CONTENDERS[name]
    space, name = SPACE.replace("0.001, 0.003", "0.003") if name in ONE_RATE else SPACE, name.replace("-", "_")
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS " + ", ".join(f"reach_{name}{suffix}" for suffix in TABLES))
        cursor.execute("SET pg_mop.reuse = off; SET pg_mop.resume = off")
        cursor.execute("SET pg_mop.seed = %s", [seed])
        began = time.monotonic()
        cursor.execute(
            "SELECT madlib.mop_search('digits_train_packed', %s, NULL, %s, %s, %s, metric => 'accuracy', "
            "validation_table => 'digits_val_packed', model_space => 'digit_space')",
            [f"reach_{name}", space, procedure, parameters.format(trials=asked.trials, iterations=asked.iterations)],
        )
        seconds = time.monotonic() - began
        cursor.execute(
            f"SELECT t.metric_final, i.validation_loss_final FROM reach_{name}_trials t JOIN reach_{name}_info i "
            "USING (mst_key) WHERE t.metric_final IS NOT NULL ORDER BY 1 DESC, 2 LIMIT 1"
        )
        accuracy, loss = cursor.fetchone()
        cursor.execute(
            "SELECT count(*) FROM madlib.mop_units WHERE kind = 'train' AND status = 'finished' AND NOT shared "
            "AND run_id = (SELECT max(run_id) FROM madlib.mop_runs)"
        )
        units = cursor.fetchone()[0]
        return accuracy, loss, units, seconds


if __name__ == "__main__":
    main()
