"""The plan of a call as text, in the manner of PostgreSQL's EXPLAIN. Pure Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

FRAMEWORKS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
MOST_NETS = 12  # nets that are listed
MOST_SEGMENTS = 16  # segments of a server that are listed
INDENT = "  "


def render(plan: Mapping[str, Any]) -> str:
    """The text of a plan (explain/preview.py)."""
    return "\n".join(_lines(plan))


def _lines(plan: Mapping[str, Any]) -> Iterator[str]:
    yield f"{_title(plan)}  ({_time(plan)})"
    for text in _body(plan):
        yield INDENT + text


def _title(plan: Mapping[str, Any]) -> str:
    if plan.get("train"):
        own = plan["train"]
        return f'Train model "{own["name"]}" to predict {own["target"]} ({own["kind"]}) on "{own["source"]}"'
    count = plan["configurations"]
    what = f"{count} configuration{'s' * (count != 1)}"
    if plan.get("search"):
        what = f"about {plan['search']['expected']['trials']} trials by {plan['search']['procedure']}"
    elif plan["folds"]:
        what += f" with {plan['folds']} folds"
    verb = f"Resume run {plan['resumes']}, " if plan["resumes"] else "Search " if plan.get("search") else "Train "
    return f'{verb}{what} on "{plan["source"]["table"]}"'


def _time(plan: Mapping[str, Any]) -> str:
    if plan.get("train"):
        own = plan["train"]
        return f"time={seconds(own['seconds_low'])}..{seconds(own['seconds_high'])}, expected {seconds(own['seconds'])}"
    if plan.get("search"):
        cases = plan["search"]
        low = cases["least"]["seconds"] * cases["range"][0]
        high = cases["most"]["seconds"] * cases["range"][1]
        if cases["time_limit"] is not None:
            high = min(high, max(cases["most"]["seconds"], cases["time_limit"]))
        return f"time={seconds(low)}..{seconds(high)}, expected {seconds(cases['expected']['seconds'])}"
    found = plan["prediction"]
    return (
        f"time={seconds(found['seconds_low'])}..{seconds(found['seconds_high'])}, expected {seconds(found['seconds'])}"
    )


def _body(plan: Mapping[str, Any]) -> Iterator[str]:
    yield f"Function: {plan['function']}   Output: {plan['output_table']}"
    if plan.get("train"):
        yield from _train(plan["train"])
        if "search" not in plan:  # no nets are trained
            return
    if plan.get("deadline"):
        late = plan["late_seconds"]
        yield f"Deadline: {plan['deadline']}" + (
            f"; expected to be {seconds(late)} late, even if it is alone" if late else ""
        )
    yield _sessions(plan)
    for name in ("source", "validation"):
        if plan[name] is not None:
            own = plan[name]
            yield (
                f'{"Training" if name == "source" else "Validation"}: "{own["table"]}"  '
                f"(segments={own['segments']} rows={own['rows']} bytes={own['bytes']})"
            )
    yield from _places(plan)
    if plan["unfit_count"]:
        yield f"Configurations that do not fit the data: {plan['unfit_count']}"
        for one in plan["unfit"]:
            yield f"{INDENT}mst_key {one['mst_key']}: {one['reason']}"
    if plan.get("search"):
        yield from _search(plan["search"])
    else:
        yield from _units(plan)
    yield f"Framework: {FRAMEWORKS.get(plan['framework']['name'], plan['framework']['name'])} ({plan['framework']['reason']})"
    yield f"Kernel: {plan['kernel']['name']} ({plan['kernel']['reason']})"
    yield from _nets(plan)
    if plan.get("prediction"):
        yield from _prediction(plan)
    memory = plan["memory"]
    yield (
        f"Memory of a trainer: about {size(memory['trainer'])}  (process={size(memory['process'])} "
        f"weights={size(memory['weights'])} optimizer={size(memory['optimizer'])} "
        f"activations={size(memory['activations'])} rows={size(memory['rows'])})"
    )
    if packed := memory.get("packing"):
        count = packed["side_by_side"]
        yield (
            f"Packing: {count} trainer{'s' * (count != 1)} of the largest net side by side, in {size(packed['bytes'])} of "
            + ("each GPU" if packed["device"] == "GPU" else packed["device"])
        )
    disk = f"Disk for states: {size(plan['disk']['states'])}, at most {size(plan['disk']['most'])}"
    if plan["moved_bytes"]:
        disk += f"; states moved between servers: {size(plan['moved_bytes'])}"
    yield disk
    for one in plan["suggestions"]:
        yield f"Suggestion: {one['statement']}  -- expected {seconds(one['seconds'])}, saves {seconds(one['saves'])}"


def _train(own: Mapping[str, Any]) -> Iterator[str]:
    """The steps of mop_train around its search."""
    took = own["steps"]
    yield f"Rows: {own['rows']}  ({' '.join(f'{part}={rows}' for part, rows in own['parts'].items())})"
    sample = f" (by {own['sampled_rows']} of the training rows)" if own["sampled_rows"] is not None else ""
    split, pack, nets = (seconds(took[step]) for step in ("split", "pack", "nets"))
    trees = f", at most {seconds(took['boosting'])} of boosting and other families" if took["boosting"] else ""
    yield f"Before the search: split {split}, pack {pack}{sample}, make nets {nets}{trees}"
    simple = " and train simple models" if own["baselines"] else ""
    yield f"After the search: measure the best{simple}, about {seconds(took['measure'])} (a guess)"
    yield f"Not predicted: {'; '.join(own['not_predicted'])}"


def _sessions(plan: Mapping[str, Any]) -> str:
    count, threads = plan["sessions"], plan["threads"]
    where = "trainers on Ray" if plan["trainers"] else "with GPUs" if plan["use_gpus"] else ""
    of = f", {threads} thread{'s' * (threads != 1)} each" if threads else ""
    others = [place["server"] for place in plan["places"] if place["server"] is not None]
    on = f" on {len(plan['places'])} servers" if others else ""
    name = plan["scheduler"] + (", averaging" if plan["averaging"] else "")
    if plan["warm_trainers"]:
        where = ", ".join(filter(None, (where, "trainers have the nets ready")))
    return f"Sessions: {count}{on}{of}{', ' + where if where else ''}   Scheduler: {name}"


def _places(plan: Mapping[str, Any]) -> Iterator[str]:
    for place in plan["places"]:
        own = place["segments"]
        name = "this server" if place["server"] is None else f"server {place['server']}"
        yield f"Place: {name}  (segments={len(own)} rows={sum(s['rows'] for s in own)} bytes={sum(s['bytes'] for s in own)})"
        for one in own[:MOST_SEGMENTS]:
            copies = f" copies={','.join(c or 'this server' for c in one['copies'])}" if one["copies"] else ""
            yield f"{INDENT}-> {one['dataset']} segment {one['segment']}  (rows={one['rows']} bytes={one['bytes']}{copies})"
        if len(own) > MOST_SEGMENTS:
            yield f"{INDENT}-> {len(own) - MOST_SEGMENTS} more segments"


def _units(plan: Mapping[str, Any]) -> Iterator[str]:
    stages, found = plan["stages"], plan["prediction"]
    shared = f", {stages['shared']} shared" if stages["shared"] else ""
    runs = f" in run {', '.join(map(str, stages['found_in_runs']))}" if stages["found_in_runs"] else ""
    taken = f", {stages['found_trained']} found trained{runs}" if stages["found_trained"] else ""
    rate = f"  (merge rate {stages['merge_rate']:.2f})" if stages["merge_rate"] and stages["merge_rate"] > 1 else ""
    awaited = f", {stages['awaited']} awaited" if stages["awaited"] else ""
    yield f"Stages: {stages['asked']} asked for{shared}{taken}{awaited}, {stages['to_train']} to train{rate}"
    if awaited:
        runs = stages["awaited_from"]
        trains = f"run{'s' * (len(runs) != 1)} {', '.join(map(str, runs))} train{'s' * (len(runs) == 1)}"
        yield (
            f"{INDENT}-> {trains} what is awaited now; the wait is not counted (SET pg_mop.reuse = off; trains it here as well)"
        )
    text = f"Units: {found['training_units']} to train, {found['evaluation_units']} to evaluate"
    if found["commands"]:
        text += (
            f", in {found['commands']} commands ({found['chains']} chains, {found['unit_batches']} with unit batches)"
        )
    yield text


def _search(search: Mapping[str, Any]) -> Iterator[str]:
    limits = [
        f"time limit {seconds(search['time_limit'])}" if search["time_limit"] is not None else "",
        f"at most {search['max_trials']} trials" if search["max_trials"] is not None else "",
        f"{search['folds']} folds" if search["folds"] else "",
    ]
    said = "".join(f"; {limit}" for limit in limits if limit)
    yield f"Search: {search['procedure']} by {search['dataset']} {search['metric']} ({search['goal']}){said}"
    for name in ("least", "expected", "most"):
        case = search[name]
        yield (
            f"{INDENT}-> {name}: {seconds(case['seconds'])}  (trials={case['trials']} iterations={case['iterations']} "
            f"units={case['training_units']} longest trial={case['longest']} iterations{_scored(case)})"
            f"{' ends by the time limit' if case['ends_by_limit'] else ''}"
        )
    if not search.get("whole", True):
        yield f"{INDENT}-> its proposals take long to make: these are the first of them, and the search trains more"


def _scored(case: Mapping[str, Any]) -> str:
    """What the members' scores by the weights of super-nets take, in a search that has them."""
    members = case.get("members")
    return f" scored members={members} in {seconds(case['scoring_seconds'])}" if members else ""


def _nets(plan: Mapping[str, Any]) -> Iterator[str]:
    nets: Sequence[Mapping[str, Any]] = plan["nets"]
    for net in nets[:MOST_NETS]:
        keys = ", ".join(map(str, net["mst_keys"])) + (", ..." if net["configurations"] > len(net["mst_keys"]) else "")
        of = "" if plan.get("search") else f"  (configurations {keys})"
        yield f"Net: model_id {net['model_id']}, {net['optimizer']}, {net['loss']}, batch {net['batch_size']}{of}"
        yield f"{INDENT}-> {seconds(net['unit_seconds'])} a unit, {source(net)}"
        if net["parameters"] is not None:
            unknown = f"; not known: {', '.join(net['unknown_layers'])}" if net["unknown_layers"] else ""
            yield f"{INDENT}-> parameters={net['parameters']} operations={net['operations_per_row']:.3g} a row{unknown}"
        if divided := net.get("devices"):
            yield f"{INDENT}-> {_devices(divided)}"
        if net.get("own_class"):
            yield f"{INDENT}-> kernel plain: only it runs the code of model class {net['own_class']}"
        if shared := net.get("shared_by"):
            yield (
                f"{INDENT}-> a super-net: its weights are those of all {shared['members']} members of base model "
                f"{shared['base']}"
            )
    if len(nets) > MOST_NETS:
        yield f"Net: {len(nets) - MOST_NETS} more"


def _devices(own: Mapping[str, Any]) -> str:
    """How many devices a net is divided among that one does not hold, and why."""
    needs = f"one {own['of']} has {size(own['memory'])}, and the net needs about {size(own['needed_by_one'])} of it"
    if own["count"] > 1:
        return f"divided among {own['count']} {own['of']}s: {needs}, or {size(own['needed_by_each'])} of each of these"
    several = f", or {size(own['needed_by_most'])} of each of {own['most']}" if own["most"] > 1 else ""
    return f"may run out of memory: {needs}{several}{'; ' * bool(own['why_one'])}{own['why_one'] or ''}"


def source(net: Mapping[str, Any]) -> str:
    """Where the seconds of a net come from, in words."""
    if net["source"] == "history":
        return f"measured by {net['runs']} run{'s' * (net['runs'] != 1)} with the kernel {net['kernel']}"
    if net["source"] == "measured":
        return "measured now"
    if net["source"] == "other nets":
        return f"a guess by its arithmetic and by {net['measured_nets']} other nets on this machine"
    return "a guess by its arithmetic: no net of yours has been measured on this machine"


def _prediction(plan: Mapping[str, Any]) -> Iterator[str]:
    found = plan["prediction"]
    yield (
        f"Makespan: {seconds(found['makespan_low'])}..{seconds(found['makespan_high'])}, expected "
        f"{seconds(found['makespan'])}; lower bound {seconds(found['lower_bound'])}"
        f"{'' if found['simulated'] or not found['training_units'] else ' (summed up, not simulated)'}"
    )
    work = {name: value for name, value in found["session_seconds"].items() if value > 0}
    if work:
        yield "Session seconds: " + ", ".join(f"{NAMES[name]} {seconds(value)}" for name, value in work.items())
    yield f"Before the first unit: {seconds(found['start_seconds'])}; after the last: {seconds(found['end_seconds'])}"
    if dealt := found.get("dealt"):
        s = "s" * (dealt["sessions"] != 1)
        yield (
            f"Threads: from second {dealt['from']:.3g} on {dealt['sessions']} session{s} of {dealt['threads']} threads"
        )
    if found["limits"]:
        yield "Limited by: " + "; ".join(found["limits"])


NAMES = {
    "train": "train",
    "evaluate": "evaluate",
    "ready": "make nets ready",
    "around": "transactions",
    "write": "read and write states",
}


def seconds(value: float) -> str:
    """A time in words.

    >>> [seconds(v) for v in (0.00123, 0.5, 12.345, 75, 5400, 200_000)]
    ['1.2 ms', '500 ms', '12.3 s', '1 min 15 s', '1 h 30 min', '2 d 7 h']
    """
    if value < 1:
        return f"{value * 1000:.2g} ms" if value < 0.01 else f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.3g} s"
    total = round(value)
    for large, small, names in ((86400, 3600, "d h"), (3600, 60, "h min"), (60, 1, "min s")):
        if total >= large:
            first, second = names.split()
            return f"{total // large} {first} {total % large // small} {second}"
    return f"{total} s"


def size(value: float) -> str:
    """Bytes in words.

    >>> [size(v) for v in (0, 512, 100_000, 123 << 20, 5 << 30)]
    ['0 bytes', '512 bytes', '98 kB', '123 MB', '5.0 GB']
    """
    if value < 1024:
        return f"{value:.0f} bytes"
    if value < 1 << 20:
        return f"{value / 1024:.0f} kB"
    if value < 1 << 30:
        return f"{value / (1 << 20):.0f} MB"
    return f"{value / (1 << 30):.1f} GB"
