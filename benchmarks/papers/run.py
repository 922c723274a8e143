"""Writes docs/papers.md: make papers (some minutes)."""

import sys
import textwrap
import time

from papers import bounds, cerebro, fluid, thesis, treeml

HEAD = """# The papers' experiments

pg_mop's schedulers repeat here the experiments of the papers that it implements, in the simulator
(`schedule/simulator.py`): the real board and schedulers decide, and given unit times stand for training. Schedulers
that these papers compare, and that pg_mop does not use, are in benchmarks/papers/schedulers. `make papers` writes this
page. The tables compare ratios, since the hardware differs. "Paper" and "thesis" are figures that were measured
elsewhere: Cerebro (Nakandala, Zhang, Kumar, VLDB 2020), the thesis on its platform (Sridhara, UC San Diego 2023),
TreeML (thesis, Seoul National University 2021), and Fluid (Yu et al., MLSys 2021).
"""

NOT_RUN = """## Not run

- Cerebro: Figure 7 (hours and utilization on ImageNet and Criteo), Figures 9 to 11 (batch size, storage), and MNIST on Ray are
  of other systems and hardware; [benchmarks](benchmarks.md) compare at small scale. Section 6.3 and appendix E (searches): the
  quality that decides which trials go on is not published. Table 2 in bytes on real connections.
- Fluid: the division of a GPU's processors among trials. pg_mop divides a GPU's memory ([device
  memory](how_it_works.md#packing)), which is not simulated.
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
