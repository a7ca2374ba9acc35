"""Where vLLM is installed these tests are collected: `make test-vllm`."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

found = importlib.util.find_spec("vllm")  # this folder's name is one, too, but has no origin
if found is None or found.origin is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model by its kind; made once."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        from tiny_models import save_model

        if kind not in made:
            made[kind] = save_model(kind, tmp_path_factory.mktemp(kind))
        return made[kind]

    return get
