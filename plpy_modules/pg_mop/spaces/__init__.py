"""Model spaces: base models, and mutators that change them; their members, numbered. Pure Python.

ModelSpace(bases, mutators) -> size, member(number), sample(count, seed).
"""

from pg_mop.spaces.model_space import Base, Member, ModelSpace
from pg_mop.spaces.reading import SpaceError

__all__ = ["Base", "Member", "ModelSpace", "SpaceError"]
