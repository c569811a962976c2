"""Without the GIL: the package leaves it off, and first calls from several threads have the results of one thread."""

import functools
import subprocess
import sys
import sysconfig
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

import jax_dcn
from tests.helpers.deform_conv.cases import cast
from tests.helpers.operators import EACH_PRIMITIVE, OPERATORS, loss, of_some, pull_back

pytestmark = [
    pytest.mark.platforms("cpu"),
    pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="needs a free-threaded Python"),
]
THREADS = 4


def results(name):
    """What an operator computes eagerly and compiled, its second derivatives, and its plans, all traced anew."""
    case = OPERATORS[name].case
    arguments = cast((case.cotangent(), case.operands()), np.float32)
    gradients = functools.partial(pull_back, case.with_backend())
    some = OPERATORS[name].differentiable[:1]
    value = functools.partial(loss, of_some(case.with_backend(), arguments[1], some))
    operand = getattr(arguments[1], some[0])
    second = jax.grad(lambda operand: (jax.grad(lambda operand: value([operand]))(operand) ** 2).sum())
    arrays = gradients(*arguments), jax.jit(gradients)(*arguments), jax.jit(second)(operand)
    plans = jax_dcn.kernel_plan(case.with_backend(), *arguments[1])
    return jax.device_get(arrays), str(plans)


def main():
    """Traces and compiles each operator in several threads at once, before any other call in this process."""
    assert not sys._is_gil_enabled()
    start = threading.Barrier(THREADS, timeout=600)  # if a thread raises, the others do not wait for ever

    def in_a_thread(_):
        by_name = {}
        for name in EACH_PRIMITIVE:
            start.wait()
            by_name[name] = results(name)
        return by_name

    with ThreadPoolExecutor(THREADS) as pool:
        threads = list(pool.map(in_a_thread, range(THREADS)))
    for name in EACH_PRIMITIVE:
        expected, expected_plans = results(name)
        for arrays, plans in (thread[name] for thread in threads):
            jax.tree.map(functools.partial(np.testing.assert_array_equal, err_msg=name), arrays, expected)
            assert plans == expected_plans, name
    assert not sys._is_gil_enabled()


def run(script):
    """Runs a program in a new process, in which a module that enables the GIL is an error."""
    result = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_import_leaves_the_gil_off():
    run("import sys, jax_dcn; assert 'jax_dcn._cpu' in sys.modules; assert not sys._is_gil_enabled()")


def test_first_calls_of_several_threads():
    run("from tests.operators import test_free_threading as test; test.main()")
