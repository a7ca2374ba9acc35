"""`python -m tests.torture`: rounds of kill -9, a line each, totals at the end. See __init__.

The seed is printed; `--seed S --only R` repeats the choices of one round on a root of its own (the
moments of the kills are the machine's, so a failure may need some tries). Exit code 1 and the root
kept when a promise did not hold.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.torture.rounds import Outcome, Place, Round

ROUNDS_PER_ROOT = 8  # of one kind; roots are looked at whole after each round


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.torture", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--only", type=int, help="one round, by its number")
    parser.add_argument("--cut", action="store_true", help="every round with cuts inside calls")
    parser.add_argument("--dir", type=Path, help="where the roots are made (default: temporary)")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    base = Path(tempfile.mkdtemp(prefix="kvstore-torture-", dir=given.dir))
    numbers = range(given.rounds) if given.only is None else [given.only]
    print(f"torture: {len(numbers)} rounds, seed {given.seed}, in {base}", flush=True)
    totals: Counter[str] = Counter()
    places: dict[bool, Place] = {}
    begun = time.monotonic()
    for number in numbers:
        place = place_for(number, places, base)
        cut = given.cut or number % 3 == 2
        try:
            outcome = Round(place, f"{given.seed} {number}", number, cut=cut).run()
        except BaseException:
            traceback.print_exc()
            print(f"round {number} FAILED; try again with --seed {given.seed} --only {number}"
                  f"{' --cut' if given.cut else ''}; the root is {place.root}")  # fmt: skip
            return 1
        report(number, place, cut, outcome, totals)
    shutil.rmtree(base)
    summary(len(numbers), totals, time.monotonic() - begun)
    return 0


def place_for(number: int, places: dict[bool, Place], base: Path) -> Place:
    """Roomy and tight roots take turns; each is used for some rounds, then a new one."""
    roomy = number % 2 == 0
    if roomy in places and number // 2 % ROUNDS_PER_ROOT == 0:
        shutil.rmtree(places.pop(roomy).root)
    if roomy not in places:
        places[roomy] = Place(base / f"{'roomy' if roomy else 'tight'}-{number}", roomy)
    return places[roomy]


def report(number: int, place: Place, cut: bool, outcome: Outcome, totals: Counter[str]) -> None:
    found, told = outcome.found, place.ledger.counts
    print(
        f"{number:4} {'roomy' if place.roomy else 'tight'}{' cut' if cut else '    '}"
        f" {outcome.kills:3} kills {outcome.takeovers} takeovers {outcome.refusals} refused |"
        f" acknowledged {told['acknowledged']:6}, forgotten {told['forgotten']:4},"
        f" read {told['judged']:7} blocks {told['bytes'] / 1e6:7.1f} MB |"
        f" after: {found.blocks:5} exact, {found.missing:5} of {found.sure:5} missing",
        flush=True,
    )
    totals.update(
        told, kills=outcome.kills, takeovers=outcome.takeovers, refusals=outcome.refusals,
        after=found.blocks, after_bytes=found.bytes, lost=found.missing if place.roomy else 0,
        sure=found.sure if place.roomy else 0,
    )  # fmt: skip
    told.clear()


def summary(rounds: int, totals: Counter[str], seconds: float) -> None:
    print(
        f"torture: {rounds} rounds in {seconds:.0f} s, {totals['kills']} processes killed,"
        f" {totals['takeovers']} takeovers, {totals['refusals']} second owners refused by name\n"
        f"  acknowledged {totals['acknowledged']} blocks, {totals['flushes']} flushes,"
        f" {totals['forgotten']} prompts deleted\n"
        f"  under way: {totals['loads']} loads, {totals['judged']} blocks,"
        f" {totals['bytes'] / 1e9:.2f} GB judged\n"
        f"  afterwards: {totals['after']} blocks, {totals['after_bytes'] / 1e9:.2f} GB judged\n"
        f"  wrong bytes 0, acknowledged blocks lost from roomy stores"
        f" {totals['lost']} of {totals['sure']}"
    )


if __name__ == "__main__":
    sys.exit(main())
