"""A study in pg_mop that trains each configuration's beginning for itself."""

import functools

from contenders.common import main
from contenders.search_in_database import contender

if __name__ == "__main__":
    main(functools.partial(contender, sharing=False))
