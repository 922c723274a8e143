"""The compiled models that a trainer keeps. Runs in the trainer."""

from __future__ import annotations

import collections
import functools
import json
import os
import random
from collections.abc import Mapping
from typing import Any

from mop_udf.kernels.autotuner import CACHED_SHARE
from mop_udf.kernels.autotuner_memory import AutotunerMemory
from mop_udf.params import params
from mop_udf.pool import compile_cache
from mop_udf.training.compiled_model import CompiledModel, evaluation_key, object_digests
from mop_udf.training.optimizers import make_optimizer

CACHE_SHARE = 0.25  # of a trainer's share of the memory, for compiled models
STALE = 4  # a model is stale if the last STALE * (number of cached models) requests left it out
MOST_MEMORIES = 1000


def _new_memory(architecture: str) -> AutotunerMemory:
    """The AutotunerMemory of an architecture, with the compilations that the compile cache knows."""
    cache = compile_cache.current()
    if cache is None:
        return AutotunerMemory()
    compiled = {
        name: last if often > 1 else CACHED_SHARE * last for name, (last, often) in cache.compiled(architecture).items()
    }
    return AutotunerMemory(
        on_compiled=functools.partial(cache.note, architecture),
        persistent=True,
        cached_seconds=lambda name: compiled.get(compile_cache.digest(name)),
    )


class ModelCache:
    """The compiled models of a trainer, up to a memory limit.

    The optimizer's scalars (params.SCALARS) are variables and not part of the key: configurations that differ in
    scalars or batch size share a compiled model.

    A run requests its models in turn, again and again. If they do not all fit, dropping the least recently used model
    would drop the very model that is needed next. Therefore stale models go first, then a random model.
    """

    def __init__(self, most_bytes: int = 1 << 30) -> None:
        """`most_bytes`: limit for all models together; the model in use stays, however large."""
        self.most_bytes = most_bytes
        self.models: collections.OrderedDict[str, CompiledModel] = collections.OrderedDict()
        self.memories: collections.OrderedDict[str, AutotunerMemory] = collections.OrderedDict()
        self.last_request: dict[str, int] = {}  # key -> number of the `get` that requested it last
        self.requests, self.random = 0, random.Random(0)
        self.nets: dict[str, str | None] = {}  # digest that the coordinator gave a compiled model -> its key
        self.evaluators: dict[Any, str] = {}  # evaluation key -> key of the model that evaluates
        self.sizes: dict[str, int] = {}  # key -> bytes at its last use
        self.in_use: str | None = None  # the key of the model in use
        self.accepted_optimizers: collections.deque[Any] = collections.deque(
            maxlen=1000
        )  # optimizers that Keras has accepted

    def get(
        self,
        architecture: str,
        compile_params: dict[str, Any],
        objects: Mapping[str, Any],
        seed: int | None = None,
        watched: bool = False,
        dropout: Any = None,
    ) -> CompiledModel:
        """The CompiledModel for architecture JSON text and parsed parameters; its scalars are not set.

        `objects`: {name: pickle} of the custom functions; `seed`: the seed of its initial weights, if training starts
        next; `watched`, `dropout`: see CompiledModel. Raises ConfigurationError.
        """
        key = self.key(architecture, compile_params, objects, watched, dropout)
        optimizer = (compile_params["optimizer"], sorted(compile_params["optimizer_args"].items()))
        if key not in self.models:  # (its constructor makes the optimizer, and so checks it)
            self.models[key] = CompiledModel(
                architecture, compile_params, objects, self._autotuner_memory, key, seed, watched, dropout
            )
        elif optimizer not in self.accepted_optimizers:
            make_optimizer(*optimizer)
        if optimizer not in self.accepted_optimizers:
            self.accepted_optimizers.append(optimizer)
        self.evaluators.setdefault(evaluation_key(architecture, compile_params, objects), key)
        return self._use(key)

    def note_net(self, digest: str | None) -> None:
        """Note the digest by which coordinators know the model that was requested last."""
        if digest is not None:
            self.nets.pop(digest, None)
            self.nets[digest] = self.in_use

    @staticmethod
    def key(
        architecture: str,
        compile_params: dict[str, Any],
        objects: Mapping[str, Any],
        watched: bool = False,
        dropout: Any = None,
    ) -> str:
        """Text that is equal for models that one CompiledModel can train. Arguments as of `get`."""
        return json.dumps(
            [architecture, params.without_scalars(compile_params), object_digests(objects), watched, dropout],
            sort_keys=True,
            default=str,
        )

    def evaluator(self, architecture: str, compile_params: dict[str, Any], objects: Mapping[str, Any]) -> CompiledModel:
        """A CompiledModel for an evaluation. Its optimizer and dropout rates may differ, since an evaluation ignores
        them.

        So an evaluation is compiled once for all of these models. Arguments as of `get`.
        """
        key = self.evaluators.get(evaluation_key(architecture, compile_params, objects))
        return (
            self._use(key)
            if key is not None and key in self.models
            else self.get(architecture, compile_params, objects)
        )

    def _use(self, key: str) -> CompiledModel:
        self.models.move_to_end(key)
        self.requests += 1
        self.last_request[key] = self.requests
        for recent in {self.in_use or key, key} & self.models.keys():  # they may have compiled since
            self.sizes[recent] = self.models[recent].nbytes
        self.in_use = key
        self._make_capacity()
        return self.models[key]

    def _autotuner_memory(self, architecture: str, part: str) -> AutotunerMemory:
        """The AutotunerMemory of an architecture or a part of it."""
        text = architecture + part
        if text not in self.memories:
            self.memories[text] = _new_memory(text)
        self.memories.move_to_end(text)
        if len(self.memories) > MOST_MEMORIES:
            self.memories.popitem(last=False)
        return self.memories[text]

    def _make_capacity(self) -> None:
        """Drop models until the rest, including the model in use, fits the limit."""
        total = sum(self.sizes.values())
        while total > self.most_bytes and len(self.models) > 1:
            oldest, *others = list(self.models)[:-1]
            stale = self.requests - self.last_request[oldest] > STALE * len(self.models)
            victim = oldest if stale else self.random.choice([oldest, *others])
            total -= self.sizes.pop(victim)
            del self.models[victim], self.last_request[victim]
            self.evaluators = {of: key for of, key in self.evaluators.items() if key != victim}
            self.nets = {digest: key for digest, key in self.nets.items() if key != victim}


def cache_bytes(memory_mb: int, threads: int) -> int:
    """Bytes for the compiled models of a trainer with a limit of `memory_mb` (0: none) and so many threads."""
    if memory_mb:
        with open("/proc/self/statm") as file:
            held = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return int(CACHE_SHARE * max(0, (memory_mb << 20) - held))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    trainers = max(1, len(os.sched_getaffinity(0)) // threads)  # trainers that share the cores, and so the memory
    return int(CACHE_SHARE * memory / trainers)
