"""Sessions of users on a server of the tests."""

import threading

import psycopg2
import psycopg2.extras
import pytest


def connect(server, database, user="postgres", password=None):
    """An autocommit connection whose rows are dicts."""
    given = {"database": database, "user": user, **({"password": password} if password else {})}
    connection = psycopg2.connect(**{**server.dsn(), **given}, cursor_factory=psycopg2.extras.RealDictCursor)
    connection.autocommit = True
    return connection


class Client:
    """A user's session: `run(sql, args)` returns the rows as dicts, `value` the first column of the first row."""

    def __init__(self, server, database, user="postgres", password=None):
        self.server, self.database, self.user = server, database, user
        self.connection = connect(server, database, user, password)

    def run(self, sql, args=None):
        with self.connection.cursor() as cursor:
            cursor.execute(sql, args)
            return [dict(row) for row in cursor.fetchall()] if cursor.description else []

    def value(self, sql, args=None):
        rows = self.run(sql, args)
        return next(iter(rows[0].values())) if rows else None

    def error(self, sql, args=None):
        """The psycopg2 error that `sql` raises; without an error, the test fails."""
        with pytest.raises(psycopg2.Error) as caught:
            self.run(sql, args)
        if self.connection.get_transaction_status() == psycopg2.extensions.TRANSACTION_STATUS_INERROR:
            self.run("ROLLBACK")
        return caught.value

    def uri(self, user=None, database=None):
        """The URI of a database for programs, by default the session's database and user."""
        to = self.connection.info
        return f"postgresql://{user or self.user}@{to.host}:{to.port}/{database or self.database}"

    def another(self, user=None):
        """A second session in the same database, by default of the same user."""
        return Client(self.server, self.database, user or self.user)

    def close(self):
        self.connection.close()


def add_server(db, name, cluster, port=None):
    """Make a cluster a foreign server of `db`, a superuser's session with postgres_fdw; pg_mop is in its schema mop.

    Returns a superuser's session on the cluster. `port`: the port to connect to, by default the cluster's.
    """
    worker = Client(cluster, "postgres")
    worker.run("CREATE SCHEMA IF NOT EXISTS mop; CREATE EXTENSION IF NOT EXISTS pg_mop SCHEMA mop CASCADE")
    db.run(
        f"CREATE SERVER {name} FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port "
        f"'{port or cluster.port}', dbname 'postgres'); "
        f"CREATE USER MAPPING FOR postgres SERVER {name} OPTIONS (user 'postgres')"
    )
    return worker


class Calling:
    """SQL that a session executes in a separate thread; `error` is the exception that it raised, or None."""

    def __init__(self, client, sql):
        self.client, self.error = client, None
        self.thread = threading.Thread(target=self._go, args=(sql,))
        self.thread.start()

    def _go(self, sql):
        try:
            self.client.run(sql)
        except psycopg2.Error as error:
            self.error = error

    def end(self, seconds=300):
        """Wait for the end of the thread. Returns the exception, or None."""
        self.thread.join(seconds)
        assert not self.thread.is_alive()
        return self.error
