"""Random life against a plain model: every byte served is right, nothing deleted or expired is.

`--seed N` replays a run; the seed and the last steps are printed when one fails.
"""

import random
from pathlib import Path

import pytest

from tests.support.oracle import Oracle

ROOMY, TIGHT = 1 << 30, 400_000  # bytes; tight: some eleven full extents


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    given = request.config.getoption("--seed")
    return random.SystemRandom().randrange(1 << 32) if given is None else int(given)


def live(root: Path, seed: int, steps: int, *, roomy: bool) -> None:
    root.mkdir()
    oracle = Oracle(root, seed, capacity=ROOMY if roomy else TIGHT, roomy=roomy)
    try:
        oracle.run(steps)
    except BaseException:
        print(f"replay with --seed {seed}; the last steps:")
        print("\n".join(oracle.trail))
        oracle.store.close_blocking()
        raise
    assert oracle.hits > steps // 2, "the run exercised hits"


@pytest.mark.parametrize("roomy", [True, False], ids=["roomy", "tight"])
def test_a_random_life_never_lies(roomy: bool, seed: int, tmp_path: Path) -> None:
    print(f"--seed {seed}")
    live(tmp_path / "root", seed, 1000, roomy=roomy)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_thousand_steps_never_lie(seed: int, tmp_path: Path) -> None:
    print(f"--seed {seed}")
    for episode in range(50):
        print(f"episode {episode}: --seed {seed + episode}")
        live(tmp_path / str(episode), seed + episode, 2000, roomy=episode % 2 == 0)
