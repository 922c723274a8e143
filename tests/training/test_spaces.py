"""What model spaces know of layers is what Keras does: arguments, shapes, counts of parameters."""

import json
import os
from random import Random

import pytest

from mop_udf.architecture.architecture_classes import LAYERS, OTHER_MODULES
from pg_mop.plan.shapes import NEEDED_BY
from pg_mop.spaces.graph import Graph
from support.spaces import RESIDUAL, RICH, RICH_MUTATORS, change, space

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")


def test_the_arguments_that_keras_needs_are_known():
    import inspect

    import keras

    needed = {}
    for name in LAYERS - OTHER_MODULES.keys():
        parameters = list(inspect.signature(getattr(keras.layers, name).__init__).parameters.values())[1:]
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        needed[name] = [p.name for p in named if p.default is p.empty]
    assert {name: names for name, names in needed.items() if names} == NEEDED_BY


@pytest.mark.parametrize("adapt", [None, "project"])
def test_keras_builds_what_fits_and_refuses_what_does_not(adapt):
    import keras

    models = space(
        *[m for m in RICH_MUTATORS if m["change"] != "value" or m["match"] != "more"], base=RICH, adapt=adapt
    )
    random, fitting, refused = Random(5), 0, 0
    for _ in range(40):
        member = models.member(random.randrange(models.size))
        if member.misfit is not None:
            refused += 1
            continue
        model = keras.models.model_from_json(member.architecture)
        assert model.count_params() == member.parameters and model.output_shape == (None, 3)
        fitting += 1
    assert fitting >= 5 and (refused or adapt)


def test_what_is_refused_keras_refuses_too():
    import keras

    cases = [
        space(change("value", "inner", argument="units", choices=[5]), base=RESIDUAL),
        space(change("layer", "pool", choices=[{"class": "MaxPooling2D", "pool_size": 9}])),
        space(change("insert", "flat", choices=[{"class": "Conv2D", "filters": 2, "kernel_size": 1}])),
    ]
    for models in cases:
        assert models.member(0).misfit
        planned = models.bases[0]
        built = planned.variations.build(Graph(planned.checked), models.member(0).chosen)
        with pytest.raises(ValueError):
            keras.models.model_from_json(json.dumps(built.architecture()))
