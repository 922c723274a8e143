"""Model spaces: base models, and mutators that change them; their members, numbered. Pure Python.

ModelSpace(bases, mutators) -> size, member(number), sample(count, seed).

A space is text: base models and mutators, as JSON (`spaces/reading.py`). `Variations` (`spaces/mutators.py`) finds all
matches once for each base model, in a template graph that has every layer that a choice may add. The result is a forest of
choice points: a point is open always, or for some options of one other point. So a product of sums counts the members
exactly, and mixed-radix digits number them (`spaces/choices.py`), with whole numbers of any length and without a list. What
would depend on two points at once is refused, because such points have no product.

A member is made by steps on a copy of the base model's graph (`spaces/graph.py`), whose primitives are recorded; then
`spaces/fitting.py` computes its shapes with the arithmetic of EXPLAIN (`plan/shapes.py`), and
`mop_udf.architecture.architecture.check` checks its JSON once more. A layer that the arithmetic does not know has no known
shape: Keras checks it in the trainer, and the trial fails by itself.

A space is a table of its owner, and no row of the catalog. Architecture tables are tables of users, too: they are granted,
dumped, restored and dropped by PostgreSQL's own commands, row security works, and no SECURITY DEFINER function is needed. The
table has the base models by value, so a dump is whole and a space does not change with an architecture table.

In a search, choice points are dimensions (`search/models.py`). A member's `model_id` is a digest of its JSON, since initial
weights and identities depend on the `model_id`: equal members share stages, in one run and across runs. The catalog has the
choices of each trial (`mop_configuration.member`), with its lineage, so that a replay writes them without the space.
"""

from pg_mop.spaces.model_space import Base, Member, ModelSpace
from pg_mop.spaces.reading import SpaceError

__all__ = ["Base", "Member", "ModelSpace", "SpaceError"]
