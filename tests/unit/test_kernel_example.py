"""The example in the docstring of the class to extend for a new kernel."""

import doctest


def test_the_example_of_a_new_kernel_runs():
    from mop_udf.kernels import timed_loop

    found = doctest.testmod(timed_loop)
    assert found.attempted >= 4 and not found.failed
