"""Keras' learning rate schedules in JSON: checked, with all defaults filled in.

Standard library only.
"""

import re
from typing import Any

from mop_udf.errors import abbreviated
from mop_udf.params.sequences import REQUIRED, SequenceError, checked_number

# the config of each schedule, with Keras' defaults
SCHEDULES = {
    "ExponentialDecay": {
        "initial_learning_rate": REQUIRED,
        "decay_steps": REQUIRED,
        "decay_rate": REQUIRED,
        "staircase": False,
    },
    "PiecewiseConstantDecay": {"boundaries": REQUIRED, "values": REQUIRED},
    "PolynomialDecay": {
        "initial_learning_rate": REQUIRED,
        "decay_steps": REQUIRED,
        "end_learning_rate": 0.0001,
        "power": 1.0,
        "cycle": False,
    },
    "InverseTimeDecay": {
        "initial_learning_rate": REQUIRED,
        "decay_steps": REQUIRED,
        "decay_rate": REQUIRED,
        "staircase": False,
    },
    "CosineDecay": {
        "initial_learning_rate": REQUIRED,
        "decay_steps": REQUIRED,
        "alpha": 0.0,
        "warmup_target": None,
        "warmup_steps": 0.0,
    },
    "CosineDecayRestarts": {
        "initial_learning_rate": REQUIRED,
        "first_decay_steps": REQUIRED,
        "t_mul": 2.0,
        "m_mul": 1.0,
        "alpha": 0.0,
    },
}
BOOLEANS, LISTS, OPTIONAL = ("staircase", "cycle"), ("boundaries", "values"), ("warmup_target",)
SERIALIZED_KEYS = {"class_name", "config", "module", "registered_name", "build_config", "name"}
SCHEDULE_MODULES = re.compile(r"keras(\.src)?\.optimizers\.schedules(\.learning_rate_schedule)?|builtins")


class Schedule:
    """A LearningRateSchedule of Keras: class name and checked config, with all defaults filled in. Equal where these
    are.
    """

    per = "batch"

    def __init__(self, name: str, config: dict[str, Any]) -> None:
        self.name, self.config = name, config
        self.text = repr(
            {
                "class_name": name,
                "config": {
                    key: list(value) if isinstance(value, tuple) else value for key, value in sorted(config.items())
                },
            }
        )

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


def parse_schedule(value: dict[str, Any]) -> Schedule:
    """The dictionary of a Keras schedule's JSON -> Schedule. Raises SequenceError."""
    name, config = value.get("class_name"), value.get("config")
    if not isinstance(name, str) or name not in SCHEDULES:
        raise SequenceError(f"{abbreviated(name)} is not a learning rate schedule of Keras ({', '.join(SCHEDULES)})")
    module, registered = value.get("module"), value.get("registered_name")
    if (
        not value.keys() <= SERIALIZED_KEYS
        or not (module is None or isinstance(module, str) and SCHEDULE_MODULES.fullmatch(module))
        or registered not in (None, name)
    ):
        raise SequenceError(f"schedule {name} is not in Keras' form: {{'class_name': ..., 'config': {{...}}}}")
    if not isinstance(config, dict):
        raise SequenceError(f"schedule {name} has no config")
    known, checked = SCHEDULES[name], {}
    for key, given in config.items():
        if key == "name" and (given is None or isinstance(given, str)):
            continue
        if key not in known:
            raise SequenceError(f"{abbreviated(key)} is not an argument of schedule {name} ({', '.join(known)})")
        checked[key] = _config_value(name, key, given)
    for key, default in known.items():
        if key not in checked and default is REQUIRED:
            raise SequenceError(f"schedule {name} needs {key}")
        checked.setdefault(key, default)
    for key in ("decay_steps", "first_decay_steps"):
        if checked.get(key, 1) <= 0:
            raise SequenceError(f"{key} of {name} must be above 0, not {checked[key]:g}")
    if name == "PiecewiseConstantDecay" and not 1 <= len(checked["boundaries"]) == len(checked["values"]) - 1:
        raise SequenceError(f"values of {name} must be one more than its boundaries")
    return Schedule(name, {key: checked[key] for key in known})


def _config_value(name: str, key: str, value: Any) -> Any:
    if key in BOOLEANS:
        if not isinstance(value, bool):
            raise SequenceError(f"{key} of {name} must be True or False, not {abbreviated(value)}")
        return value
    if key in LISTS:
        if not isinstance(value, list):
            raise SequenceError(f"{key} of {name} must be a list of numbers, not {abbreviated(value)}")
        return tuple(checked_number(name, key, v) for v in value)
    return None if value is None and key in OPTIONAL else checked_number(name, key, value)
