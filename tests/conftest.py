import collections
import functools
import gc
import importlib.util
import os
import shutil

# Set before jax is imported. Sharding tests need several devices, on any machine. Autotuning would take longer than it
# saves in programs that run once. Several test processes share the memory of a GPU.
os.environ["XLA_FLAGS"] = " ".join(
    ["--xla_force_host_platform_device_count=8", "--xla_gpu_autotune_level=0", os.environ.get("XLA_FLAGS", "")]
)
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
# Programs that tests start neither use nor fill the cache of the user's compiled programs.
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
os.environ["MPLBACKEND"] = "agg"
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"  # a program's lines of Python take a twentieth of the time

import hypothesis
import jax
import pytest

from benchmarks.support import gpu_compiler

hypothesis.settings.register_profile(
    "jax_dcn",
    deadline=None,  # the first example compiles
    derandomize=True,
    database=None,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],  # shrinking is useless for random seeds
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("jax_dcn")

PLATFORMS = ("cpu", "cuda")
MOST_PROGRAM_BYTES = 2**30


def pytest_addoption(parser):
    parser.addoption("--optimized", action="store_true", help="compile all tests for the CPU as users' programs are")
    parser.addoption("--platform", choices=PLATFORMS, help="run only the tests of this platform")


def pytest_configure(config):
    """Turns off what costs XLA time for the CPU, and does not concern the kernels.

    The fusion emitters take half the time of compiling. XLA also splits each program into modules to compile them in
    parallel, which takes an eighth of the time where all cores already run tests.

    XLA reads its flags when it compiles the first program. The XLA of jax 0.11.2 has lost the first flag, and an
    unknown flag ends the process.

    Python collects garbage less often than by default, because a collection visits all that jax has cached.
    """
    gc.set_threshold(50_000, 20, 20)
    if not config.getoption("optimized") and jax.__version_info__ < (0, 11):
        fast = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
        os.environ["XLA_FLAGS"] = f"{fast} {os.environ['XLA_FLAGS']}"
    if hasattr(config, "cache"):  # which -p no:cacheprovider takes away
        keep_programs(config)


def keep_programs(config):
    """Compiles a program once that several tests have, or both of pytest's processes, or an earlier run.

    Its name is a digest of all that XLA compiles. The kernels are not compiled into it: it calls them by name.
    """
    folder = config.cache.mkdir("programs")
    is_worker = hasattr(config, "workerinput")
    if not is_worker and sum(file.stat().st_size for file in folder.iterdir()) > MOST_PROGRAM_BYTES:
        shutil.rmtree(folder)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_generate_tests(metafunc):
    """Each test runs on all platforms, except tests that name their platforms."""
    marker = metafunc.definition.get_closest_marker("platforms")
    metafunc.parametrize("platform", marker.args if marker else PLATFORMS, indirect=True)


def pytest_collection_modifyitems(config, items):
    """Runs the GPU tests first, in case the run is stopped, and skips doctests that need packages that are missing."""
    if chosen := config.getoption("platform"):
        config.hook.pytest_deselected(items=[item for item in items if platform_of(item) != chosen])
        items[:] = [item for item in items if platform_of(item) == chosen]
    for module, package in {
        "jax_dcn.viz.plots": "matplotlib",
        "jax_dcn.viz.attention": "matplotlib",
        "jax_dcn.interop.onnx_model": "onnx",
    }.items():
        if importlib.util.find_spec(package) is None:
            for item in items:
                if item.name.startswith(module):
                    item.add_marker(pytest.mark.skip(reason=f"no {package} here"))
    items.sort(key=lambda item: (platform_of(item) != "cuda", not is_optimized(item)))
    mark_first_cases(items)


def mark_first_cases(items):
    """Marks one case of each thorough test, and of each machine of the PTX interpreter, so that all run in CI."""
    seen = set()
    for item in items:
        if item.get_closest_marker("thorough"):
            parameters = item.callspec.params
            keys = {(item.path, item.originalname, parameters["platform"]), parameters.get("interpreter")} - {None}
            if not keys <= seen:
                item.add_marker("first_case")
                seen |= keys


def pytest_runtest_teardown(item, nextitem):
    """Forgets the programs of a file. With all optimisations, those of all files took 8 GB, and XLA crashed."""
    if item.config.getoption("optimized") and (nextitem is None or nextitem.path != item.path):
        jax.clear_caches()


def platform_of(item):
    return item.callspec.params["platform"] if getattr(item, "callspec", None) else None


@pytest.fixture(autouse=True)
def platform(request):
    """The platform that the test runs on.

    Matrix products have full precision, as in the references.
    """
    if request.param == "cuda" and not has_gpu():
        pytest.skip("no NVIDIA GPU here")
    compile_optimized(request.param != "cpu" or is_optimized(request.node))
    with jax.default_device(jax.devices(request.param)[0]), jax.default_matmul_precision("highest"):
        yield request.param


def is_optimized(item):
    return item.config.getoption("optimized") or item.get_closest_marker("optimized") is not None


@functools.lru_cache(maxsize=1)  # runs only if `optimized` has changed
def compile_optimized(optimized):
    """Compiles with or without LLVM's expensive passes, which take most of the time of the tests.

    The option is not part of the keys of jax's caches, so a change clears them.
    """
    jax.clear_caches()
    jax.config.update("jax_disable_most_optimizations", not optimized)


@functools.cache
def has_gpu():
    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


@pytest.fixture
def x64():
    """Enables float64 for one test; all others use jax's default, as users do."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def compiler_for_gpus():
    """XLA's: this environment's, or else the one that `make test-slow` installs beside it."""
    try:
        gpu_compiler.initialise()
    except gpu_compiler.Missing as reason:
        pytest.skip(str(reason))


@pytest.fixture
def figures():
    """Draws what a test has plotted, and closes it."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    yield pyplot
    for number in pyplot.get_fignums():
        pyplot.figure(number).canvas.draw()
    pyplot.close("all")


def pytest_terminal_summary(terminalreporter):
    """Prints one line per reason for skips; pytest itself prints one per test."""
    reports = terminalreporter.stats.get("skipped", ())
    reasons = collections.Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")
