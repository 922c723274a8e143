"""What PL/Python puts before a message: the extension and the client leave out the same."""

import pytest

from pg_mop.backend import errors
from pg_mop_client import errors as client_errors


@pytest.mark.parametrize(
    "text, message",
    [
        ("there is no table", "there is no table"),
        ("plpy.Error: mop_fit: there is no table", "mop_fit: there is no table"),
        ("spiexceptions.RaiseException: plpy.Error: pg_mop: no table", "no table"),  # an error within another call
        ("pg_mop: no table", "no table"),  # Greenplum
        ("column: plpy.Error: no table", "column: plpy.Error: no table"),  # not at the beginning
    ],
)
def test_a_message_is_without_the_classes_before_it(text, message):
    assert errors.without_classes(text) == client_errors.without_classes(text) == message


class OfSpi(Exception):
    sqlstate, spidata = "22012", (None, "these facts", "this command", None, 0)


def test_an_spi_error_keeps_its_fields():
    error = errors.error_of(OfSpi("spiexceptions.DivisionByZero: division by zero"))
    assert (error.message, error.detail, error.hint, error.sqlstate) == (
        "division by zero",
        "these facts",
        "this command",
        "22012",
    )
    assert errors.error_of(Exception("lost")).detail is None
