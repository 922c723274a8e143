"""What travels about units: values that become JSON and are read from it again, and are checked as they are read."""

import json

import pytest

from mop_udf.unit_spec import ModelSpec, SegmentSpec, SpecError, StepSpec, UnitModel, UnitRequest, UnitSpec, steps_of

SEGMENT = {"segment": 1, "fingerprint": "a", "fingerprint_sql": "SELECT 'a' AS fingerprint"}
SPEC = UnitSpec(
    **SEGMENT,
    rows=10,
    bytes=400,
    dataset_key="t/1/a",
    run_id=7,
    fencing_token=1,
    kind="train",
    dataset="training",
    options={"threads": 1},
    dtypes=["<f4", "<i2"],
    run_seconds=1,
    replicas=[[1, 10], [2, 12]],
    models=[ModelSpec(stage=1, iteration=1, functions=[["squared", "00"]]), ModelSpec(stage=2, iteration=1)],
    then=[StepSpec(segment=2, models=[None, ModelSpec(stage=2, iteration=1, kernel=[["plain", 3]])])],
    segments=[SegmentSpec(**{**SEGMENT, "segment": 2})],
)


def test_a_unit_spec_is_read_as_it_was_written():
    text = json.dumps(SPEC.to_json())
    assert UnitSpec.from_json(json.loads(text)) == SPEC
    assert UnitSpec.from_json({**json.loads(text), "unknown": 1}) == SPEC
    header = SPEC.header(SPEC.segments[0])
    assert (header.segment, header.kind, header.replicas) == (2, "train", SPEC.replicas)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"run_id": "7"}, "run_id"),
        ({"run_id": None}, "run_id"),
        ({"seed": True}, "seed"),
        ({"finite": 1}, "finite"),
        ({"run_seconds": "1"}, "run_seconds"),
        ({"dtypes": "<f4"}, "dtypes"),
        ({"replicas": [[1, "x"]]}, "replicas"),
        ({"options": []}, "options"),
        ({"models": [{"stage": 1}]}, "iteration"),
        ({"models": [None]}, "ModelSpec"),
        ({"then": [{"segment": 2}]}, "models"),
    ],
)
def test_what_is_no_unit_spec_is_refused_by_name(changes, said):
    with pytest.raises(SpecError, match=said):
        UnitSpec.from_json({**SPEC.to_json(), **changes})


def test_a_missing_member_is_named():
    spec = SPEC.to_json()
    del spec["kind"]
    for data, said in ((spec, "has no kind"), ([], "must be a JSON object")):
        with pytest.raises(SpecError, match=said):
            UnitSpec.from_json(data)


def test_the_steps_of_a_request_tell_what_differs():
    models = [
        UnitModel(stage=n, model_id=1, iteration=1, architecture="{}", compile_params="a", plain_weights=False)
        for n in (1, 2)
    ]
    rows = {"segment": 2, "rows": 5, "nbytes": 50, "dataset": "two"}
    later = {"stage": 3, "iteration": 2, "compile_params": "b", "costs": {}}
    request = UnitRequest(
        **vars(SPEC.header(SPEC)),
        models=models,
        then=[{**rows, "models": [None, later]}, {**rows, "segment": 1, "models": [{}, {}]}],
    )
    first, second, third = steps_of(UnitRequest.from_json(json.loads(json.dumps(request.to_json()))))
    assert [unit.stage for unit in first] == [1, 2] and first[0].dataset == "t/1/a" and first[0].seed == SPEC.seed
    assert second[0] is None and (second[1].stage, second[1].compile_params, second[1].dataset) == (3, "b", "two")
    assert [(unit.stage, unit.segment, unit.iteration) for unit in third] == [(1, 1, 1), (3, 1, 2)]
    request.then = [{**rows, "models": [{"stage": "x"}, None]}]
    with pytest.raises(SpecError, match="stage"):
        steps_of(request)
