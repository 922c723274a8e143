"""The arguments of mop_train as a value, without a server."""

import dataclasses
import pathlib
import re

import pytest

from pg_mop.api.tables.train_arguments import KINDS, TrainArguments

SQL = pathlib.Path(__file__).parents[2] / "sql" / "64_train.sql"
OF_SQL = {"text": (str,), "interval": (str,), "double precision": (int, float), "boolean": (bool,)}


def call(**values):
    return TrainArguments(**{**dict.fromkeys(KINDS), "source": "t", "name": "m", **values})


def test_the_fields_are_the_parameters_of_the_sql_function_in_order():
    text = re.search(r"\.mop_train\((.*?)\n\) RETURNS", SQL.read_text(), re.DOTALL)[1]
    parameters = re.findall(r'^ *"?(\w+)"? (\w+(?: precision)?)', text, re.MULTILINE)
    assert [(name, OF_SQL[sql_type]) for name, sql_type in parameters] == list(KINDS.items())
    assert list(KINDS) == [field.name for field in dataclasses.fields(TrainArguments)]


def test_stored_arguments_are_those_of_the_call_under_the_present_name():
    arguments = call(valid=0.1, max_trials=7, baselines=False, folds=3)
    assert arguments.to_json() == {
        "source": "t",
        "name": "m",
        "valid": 0.1,
        "max_trials": 7,
        "baselines": False,
        "folds": 3,
    }
    assert TrainArguments.from_json(arguments.to_json(), "m") == arguments
    assert TrainArguments.from_json(arguments.to_json(), "renamed") == dataclasses.replace(arguments, name="renamed")


@pytest.mark.parametrize(
    "stored", [{"source": 7}, {"valid": "0.2"}, {"valid": True}, {"keep": 1}, {"folds": [3]}, {"sorce": "t"}]
)
def test_stored_values_of_another_type_or_name_are_refused(stored):
    with pytest.raises(ValueError):
        TrainArguments.from_json(stored, "m")
