"""The compiled models that a trainer keeps. Runs in the trainer."""

import collections
import functools
import json
import os
import random

from mop_udf import compile_cache, params
from mop_udf.compiled_model import CompiledModel, evaluation_key, object_digests
from mop_udf.kernels.autotuner import CACHED_SHARE
from mop_udf.kernels.autotuner_memory import AutotunerMemory
from mop_udf.optimizers import make_optimizer

CACHE_SHARE = 0.25  # of a trainer's share of the memory: for compiled models
STALE = 4  # a model that was not asked for while all were, so many times, is not asked for any more
MOST_MEMORIES = 1000


def _new_memory(architecture):
    """What is AutotunerMemory of an architecture at first: what trainers have compiled of it, which is kept for later ones."""
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
    """The compiled models of a trainer, as many as the memory for them holds.

    The optimizers' scalars (params.SCALARS) are not part of the key, since they are variables: configurations that
    differ in them share a compiled model, and so do different batch sizes.

    A run asks for its models in turn, again and again: where they do not all fit, the one that was not used for the
    longest time is the very one that is needed next. So any goes, by chance, but first those that no run asks for any
    more.
    """

    def __init__(self, most_bytes=1 << 30):
        """`most_bytes`: of all models together; the one in use stays, however large."""
        self.most_bytes, self.models, self.memories = most_bytes, collections.OrderedDict(), collections.OrderedDict()
        self.used, self.asked, self.random = {}, 0, random.Random(0)  # key -> when (in `get`s) it was asked for last
        self.evaluators = {}  # what an evaluation depends on -> key of the model that does it
        self.sizes, self.last = {}, None  # key -> bytes when it was used last; the key of the one in use
        self.judged = collections.deque(maxlen=1000)  # optimizers that Keras has accepted

    def get(self, architecture, compile_params, objects, seed=None, watched=False, dropout=None):
        """The CompiledModel for architecture JSON text and parsed parameters, its scalars not set.

        `objects`: {name: pickle} of the custom functions; `seed`: that with which it will be started next, if it will;
        `watched`, `dropout`: see CompiledModel.
        """
        key = self.key(architecture, compile_params, objects, watched, dropout)
        optimizer = (compile_params["optimizer"], sorted(compile_params["optimizer_args"].items()))
        if key not in self.models:  # (it makes such an optimizer)
            self.models[key] = CompiledModel(
                architecture, compile_params, objects, self._autotuner_memory, key, seed, watched, dropout
            )
        elif optimizer not in self.judged:
            make_optimizer(*optimizer)
        if optimizer not in self.judged:
            self.judged.append(optimizer)
        self.evaluators.setdefault(evaluation_key(architecture, compile_params, objects), key)
        return self._use(key)

    @staticmethod
    def key(architecture, compile_params, objects, watched=False, dropout=None):
        """Equal for what one CompiledModel trains. Arguments as of `get`."""
        return json.dumps(
            [architecture, params.without_scalars(compile_params), object_digests(objects), watched, dropout],
            sort_keys=True,
            default=str,
        )

    def evaluator(self, architecture, compile_params, objects):
        """A CompiledModel to evaluate with: one that differs in what an evaluation has no use for (the optimizer, rates
        of dropout) will do, so that the evaluation is compiled once for all of them. Arguments as of `get`."""
        key = self.evaluators.get(evaluation_key(architecture, compile_params, objects))
        return self._use(key) if key in self.models else self.get(architecture, compile_params, objects)

    def _use(self, key):
        self.models.move_to_end(key)
        self.asked += 1
        self.used[key] = self.asked
        for recent in {self.last, key} & self.models.keys():  # they may have been compiled since
            self.sizes[recent] = self.models[recent].nbytes
        self.last = key
        self._make_capacity()
        return self.models[key]

    def _autotuner_memory(self, architecture, part):
        """What is AutotunerMemory of an architecture, or a part of it."""
        text = architecture + part
        if text not in self.memories:
            self.memories[text] = _new_memory(text)
        self.memories.move_to_end(text)
        if len(self.memories) > MOST_MEMORIES:
            self.memories.popitem(last=False)
        return self.memories[text]

    def _make_capacity(self):
        """Forget models until the others, of which the last is in use, fit the memory for them."""
        total = sum(self.sizes.values())
        while total > self.most_bytes and len(self.models) > 1:
            oldest, *others = list(self.models)[:-1]
            stale = self.asked - self.used[oldest] > STALE * len(self.models)
            victim = oldest if stale else self.random.choice([oldest, *others])
            total -= self.sizes.pop(victim)
            del self.models[victim], self.used[victim]
            self.evaluators = {of: key for of, key in self.evaluators.items() if key != victim}


def cache_bytes(memory_mb, threads):
    """Memory for the compiled models of a trainer that may use so many MB (0: no limit) and has so many threads."""
    if memory_mb:
        with open("/proc/self/statm") as file:
            held = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return int(CACHE_SHARE * max(0, (memory_mb << 20) - held))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    trainers = max(1, len(os.sched_getaffinity(0)) // threads)  # that share the cores, and so the memory
    return int(CACHE_SHARE * memory / trainers)
