"""`python -m tests.torture.soak`: the crowd at steady work on a tight root; memory, descriptors,
leases, regions and threads are sampled, shown, and must be flat (flat.py).

Evictions, expiries of brief prompts, cancelled and abandoned loads go on all the time; one peer is
closed or killed and opened again and again. Now and then everybody rests: then nothing may be in
use. At the end the root is looked at as after a round of torture. Exit code 1: something grew, or
a promise did not hold.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.torture.crowd import Child, Crowd
from tests.torture.deeds import Scene
from tests.torture.flat import Sample, judge
from tests.torture.ledger import Ledger
from tests.torture.rounds import OWNER_SLOT, TIGHT
from tests.torture.verify import verify
from tests.torture.worker import Part

STEADY_SLOTS = range(4)  # the owner and three peers stay open all the time
GUEST_SLOT = 4  # comes and goes
RESTS = 10
HEAD = (
    "  time  process        rss MB  fds files threads leases regions |"
    "  used MB evicted expired | judged MB"
)


class Soak:
    def __init__(self, root: Path, seed: int, minutes: float, every_s: float) -> None:
        self.root, self.every_s = root, every_s
        self.seconds = 60 * minutes
        self.rng = random.Random(seed)
        self.ledger = Ledger()
        self.samples: list[Sample] = []
        self.guests = 0
        self.wrong = 0

    def run(self) -> list[str]:
        with Crowd(self.ledger) as crowd:
            self.crowd = crowd
            for slot in (*STEADY_SLOTS, GUEST_SLOT):
                self.start(slot)
            print(HEAD, flush=True)
            self.begun = time.monotonic()
            for rest in range(RESTS):
                self.work_until(self.seconds * (rest + 1) / RESTS)
                self.take_a_rest()
            crowd.stop(crowd.living())
            found = verify(self.root, self.ledger, TIGHT, roomy=False)
        counts = self.ledger.counts
        print(
            f"soak: {self.seconds / 60:.0f} minutes, {self.guests} peers reopened,"
            f" {counts['loads']} loads, {counts['judged']} blocks, {counts['bytes'] / 1e9:.1f} GB"
            f" judged, {counts['acknowledged']} blocks acknowledged, {counts['forgotten']} prompts"
            f" deleted; afterwards {found.blocks} blocks exact; wrong bytes 0"
        )
        return judge(self.samples)

    def start(self, slot: int) -> None:
        role = "owner" if slot == OWNER_SLOT else "peer"
        child = self.crowd.start(
            Part(
                root=str(self.root), role=role, capacity=TIGHT,
                seed=f"{self.rng.random()}", scene=Scene(slot, 0, roomy=False, private=False),
            )
        )  # fmt: skip
        self.crowd.until(lambda: child.is_open or child.ended, "a store opens")

    def now(self) -> float:
        return time.monotonic() - self.begun

    def work_until(self, end_s: float) -> None:
        while self.now() < end_s:
            self.crowd.pass_time(min(self.every_s, max(0.0, end_s - self.now())))
            for slot in STEADY_SLOTS:
                self.sample(self.crowd.children[slot], "say")
            self.change_guest()

    def change_guest(self) -> None:
        guest = self.crowd.children[GUEST_SLOT]
        if self.rng.random() < 0.5:
            self.crowd.kill([guest])
        else:
            self.crowd.stop([guest])
        self.start(GUEST_SLOT)
        self.guests += 1

    def take_a_rest(self) -> None:
        steady = [self.crowd.children[slot] for slot in STEADY_SLOTS]
        for child in steady:
            self.sample(child, "rest")
        for child in steady:
            child.pipe.send("go")

    def sample(self, child: Child, command: str) -> None:
        said = self.crowd.ask(child, command)
        proc = Path(f"/proc/{child.pid}")
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        sample = Sample(
            seconds=self.now(),
            name=f"{child.part.role} {child.part.scene.slot}",
            resting=command == "rest",
            rss=int(status["VmRSS"].split()[0]) * 1024,
            descriptors=len(list((proc / "fd").iterdir())) - said["open_files"],
            open_files=said["open_files"],
            threads=int(status["Threads"]),
            leases=said["leases"],
            regions=said["regions"],
        )
        self.samples.append(sample)
        print(
            f"{sample.seconds:6.0f}  {sample.name:8} {'rest' if sample.resting else '    '}"
            f" {sample.rss / 1e6:7.1f} {sample.descriptors:4} {sample.open_files:5}"
            f" {sample.threads:7} {sample.leases:6} {sample.regions:7} |"
            f" {said['used'] / 1e6:8.1f} {said['evicted']:7} {said['expired']:7} |"
            f" {self.ledger.counts['bytes'] / 1e6:9.0f}",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.torture.soak")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--every", type=float, default=5, help="seconds between two samples")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--dir", type=Path, help="where the root is made (default: temporary)")
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="kvstore-soak-", dir=given.dir)) / "root"
    print(f"soak: {given.minutes:g} minutes, seed {given.seed}, in {root}", flush=True)
    findings = Soak(root, given.seed, given.minutes, given.every).run()
    shutil.rmtree(root.parent)
    for finding in findings:
        print(f"NOT FLAT  {finding}")
    print("soak: " + ("FAILED" if findings else "memory, descriptors, leases and threads are flat"))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
