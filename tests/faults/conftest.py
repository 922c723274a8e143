"""A fixture of the tests that look at the processes of a server."""

import pytest

from support.cluster import Cluster


@pytest.fixture(scope="module")
def own():
    """A server whose fork server, and so its pool, is nobody else's."""
    with Cluster() as cluster:
        yield cluster
