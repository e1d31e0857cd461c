import subprocess
import sys

import pytest

import pollux


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_importing_pollux_imports_nothing_heavy() -> None:
    heavy = "import sys, pollux; print({'jax', 'keras', 'torch', 'numpy', 'pandas'} & sys.modules.keys())"
    assert python(heavy) == "set()\n"


def test_submodules_are_there_as_soon_as_they_are_named() -> None:
    assert python("import pollux; print(pollux.sim.run.__name__)") == "run\n"


def test_what_is_not_there_is_said_by_name() -> None:
    with pytest.raises(AttributeError, match="module 'pollux' has no attribute 'simulate'"):
        _ = pollux.simulate


def test_whatever_is_refused_is_a_value_error_of_ours() -> None:
    assert issubclass(pollux.PolluxError, ValueError)
    assert f"{pollux.PolluxError.__module__}.{pollux.PolluxError.__name__}" == "pollux.PolluxError"
