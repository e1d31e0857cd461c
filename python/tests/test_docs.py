"""Every Python block of the guide runs by itself, as a reader would run it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from keras_environment import keras_python

pytest.importorskip("torch", reason="PyTorch is not installed: `make python` installs it")

GUIDE = Path(__file__).parents[2] / "docs" / "python"
LIMIT_S = 120
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def blocks() -> list[tuple[str, str]]:
    """Name and text of every block."""
    pages = sorted(GUIDE.glob("*.md"))
    found = [(page.stem, _BLOCK.findall(page.read_text())) for page in pages]
    return [(f"{page}-{idx}", text) for page, texts in found for idx, text in enumerate(texts, 1)]


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in blocks()])
def test_a_block_of_the_guide_runs_by_itself(text: str, tmp_path: Path) -> None:
    if "import jax\n" in text and importlib.util.find_spec("jax") is None:
        pytest.skip("JAX is not installed: `make python` installs it")
    python = keras_python() if "import keras\n" in text else sys.executable
    script = tmp_path / "train.py"
    script.write_text(text)
    done = subprocess.run([python, script], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr


def test_every_name_of_the_package_is_in_the_guide() -> None:
    import pollux.torch as px

    guide = "".join(page.read_text() for page in GUIDE.glob("*.md"))
    # What `wrap` returns is told of, but nobody makes one.
    assert [name for name in px.__all__ if f"px.{name}" not in guide and name != "ElasticModule"] == []


def test_every_name_for_jax_is_on_its_page() -> None:
    px = pytest.importorskip("pollux.jax", reason="JAX is not installed: `make python` installs it")
    page = (GUIDE / "jax.md").read_text()
    assert [name for name in px.__all__ if f"px.{name}" not in page] == []


def test_every_name_for_keras_is_on_its_page() -> None:
    code = "import pollux.keras as px; print(*px.__all__)"
    names = subprocess.run([keras_python(), "-c", code], capture_output=True, text=True, timeout=LIMIT_S).stdout.split()
    page = (GUIDE / "keras.md").read_text()
    assert len(names) == 8 and [name for name in names if f"px.{name}" not in page] == []


def test_links_of_the_guide_lead_somewhere() -> None:
    for page in GUIDE.glob("*.md"):
        for target in _LINK.findall(page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
