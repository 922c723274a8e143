"""Errors of PostgreSQL's, raised from Python."""


def raise_error(plpy, message, sqlstate, detail=None, hint=None):
    """Raise an error of PostgreSQL's, with its DETAIL and HINT."""
    try:
        plpy.error(message, sqlstate=sqlstate, **{k: v for k, v in (("detail", detail), ("hint", hint)) if v})
    except TypeError:  # before PostgreSQL 9.6 it takes a text alone: what tells more is an error of SPI's
        problem = type("pg_mop", (plpy.SPIError,), {"__module__": "__main__"})(message)
        problem.sqlstate, problem.spidata = sqlstate, (_sqlcode(sqlstate), detail, hint, None, 0)
        raise problem from None


def sqlstate_of(error):
    """The SQLSTATE of an error of SPI's. (Before PostgreSQL 9.6 one of our own has only its number.)"""
    number = (getattr(error, "spidata", None) or (0,))[0]
    return getattr(error, "sqlstate", None) or "".join(chr((number >> 6 * i & 0x3F) + ord("0")) for i in range(5))


def _sqlcode(sqlstate):
    """The number by which PostgreSQL's C code knows an SQLSTATE."""
    return sum((ord(c) - ord("0") & 0x3F) << 6 * i for i, c in enumerate(sqlstate))
