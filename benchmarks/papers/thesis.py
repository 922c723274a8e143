"""Sridhara: the Cerebro platform, thesis, UC San Diego 2023."""

import random
from statistics import mean

from papers.cerebro import FLOPS
from papers.common import seconds, table

CASES = [  # figure, models, GPUs of each node, the thesis' seconds: random, one model a GPU, MILP
    ("4.1", 6, (2,) * 8, (8603, 15926, 7967)),
    ("4.2", 6, (4, 2, 2), (5252, 7780, 5255)),
    ("4.3", 10, (4, 2, 2), (8956, 10172, 8995)),
]
DRAWS = 20


def sections():
    """The section of the page."""
    rows = []
    for figure, models, nodes, (random_, one, milp) in CASES:
        nodewise, planned = [], []
        for draw in range(DRAWS):
            source = random.Random(f"{figure} {draw}")
            # (equation 4.15: a node has shards in proportion to its GPUs, and is that many times as fast)
            costs = [float(source.choice(FLOPS)) for _ in range(models)]
            single = seconds("randomized", costs, [1.0] * sum(nodes), 1, draw)
            nodewise.append(seconds("randomized", costs, [1.0] * len(nodes), 1, draw) / single)
            planned.append(seconds("milp", costs, [1.0] * len(nodes), 1, draw) / single)
        rows.append(
            [
                figure,
                models,
                ", ".join(map(str, nodes)),
                f"{random_ / one:.3f}",
                f"{mean(nodewise):.3f}",
                f"{milp / one:.3f}",
                f"{mean(planned):.3f}",
            ]
        )
    text = table(["figure", "models", "GPUs of the nodes", "random: thesis", "here", "MILP: thesis", "here"], rows)
    return [
        f"""## Thesis, Figures 4.1 to 4.3: one model on a node, or one on each GPU

Source: section 4.4, equation 4.15. A model uses all GPUs of a node and is faster in proportion (random, MILP), or it visits
each GPU with a shard of its own. Makespans relative to the latter; mean of {DRAWS} draws of the models' times.

{text}
Differences. The thesis does not publish the models' times; here they are drawn from the nets of Table 7 of Cerebro, which are
more unequal: with 8 shards, a ratio of 0.675 means that all models together take 5.4 times as long as the longest one. Its
MILP may give a model fewer GPUs than a node has; pg_mop's places do one unit at a time. Its MILP had 300 s
and did not converge; ours had at most 10 s.
"""
    ]
