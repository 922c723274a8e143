"""Writes docs/papers.md: make papers (some minutes)."""

import sys
import textwrap
import time

from papers import bounds, cerebro, fluid, thesis, treeml

HEAD = """# The papers' experiments

pg_mop's schedulers repeat here the experiments of the papers that it implements, in the simulator (`schedule/simulator.py`):
the real board and the real schedulers decide, and given unit times stand for training. `make papers` writes this page. Times of
other hardware do not compare, so the tables compare ratios. "Paper" and "thesis" are figures that were measured elsewhere:
Cerebro (Nakandala, Zhang, Kumar, VLDB 2020), the thesis on Cerebro's platform (Sridhara, UC San Diego 2023) and TreeML (thesis,
Seoul National University 2021). Fluid is Yu et al., MLSys 2021.
"""

NOT_RUN = """## Not run

- Cerebro, Figure 7 (hours and utilization on ImageNet and Criteo), Figures 9 to 11 (batch size, remote and distributed
  storage): they measure other systems and hardware. The same comparison at small scale: [benchmarks](benchmarks.md).
- Cerebro, section 6.3 and appendix E (HyperOpt, ASHA in a fixed time, Hyperband): the quality that decides which trials go on
  is not published.
- Cerebro, Table 2 in bytes on real connections.
- Cerebro on Ray, MNIST (Ray Tune 262 s, MOP 323 s): training for real, on its own hardware.
- Fluid's GPUs, and its division of a GPU's processors among trials. pg_mop divides a GPU's memory among trainers
  ([device memory](how_it_works.md#packing)), which is not simulated.
"""


def wrapped(text, width=128):
    """Markdown with its paragraphs filled to the width; tables, lists and headings stay."""
    blocks = text.strip().split("\n\n")
    return "\n\n".join(b if b[0] in "|#-" else textwrap.fill(b, width, break_on_hyphens=False) for b in blocks) + "\n"


def main():
    parts = [HEAD]
    for module in (cerebro, thesis, treeml, fluid, bounds):
        begun = time.monotonic()
        parts += module.sections()
        print(f"{module.__name__}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    sys.stdout.write(wrapped("\n".join([*parts, NOT_RUN])))


if __name__ == "__main__":
    main()
