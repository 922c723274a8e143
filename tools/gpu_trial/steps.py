"""The steps of the trial, by name."""

FRAMEWORKS = {"jax": "JAX", "torch": "PyTorch"}
CHECK = ("jax", "torch", "shared", "killed")
BENCH = ("vmap", "dense-wide", "cnn")
GROUPS = {"check": CHECK, "bench": BENCH, "all": ("look", "build", *CHECK, *BENCH)}
STEPS = (*GROUPS["all"], "table")
ABOUT = {
    "look": "what the machine has",
    "build": "PostgreSQL, packages and extension",
    "jax": "conformance class of one server on JAX",
    "torch": "conformance class of one server on PyTorch",
    "shared": "two segments share one GPU",
    "killed": "GPU memory of killed trainers is free again",
    "vmap": "16 configurations as one computation, and one by one",
    "dense-wide": "dense-wide against a plain loop",
    "cnn": "cnn against a plain loop",
}


def parsed(names):
    """The steps that the names of steps and groups stand for, in order, each once. Raises ValueError for other names."""
    wanted = set()
    for name in names or ["all"]:
        if name not in STEPS and name not in GROUPS:
            raise ValueError(f"there is no step {name!r}: {', '.join([*STEPS, *GROUPS])}, or folder")
        wanted.update(GROUPS.get(name, [name]))
    return [step for step in STEPS if step in wanted]
