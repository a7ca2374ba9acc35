"""One round: an owner, peers and an `auto` peer at work on one root, kills, restarts, and the look
at what is left.

All choices come from the round's seed; the moments at which the kills hit are the machine's.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from pathlib import Path

from kvstore import OpenError
from kvstore.store import open_blocking
from kvstore.testing import FileCall
from tests.torture.crowd import Broken, Child, Crowd
from tests.torture.deeds import SLOTS, Scene
from tests.torture.ledger import Ledger
from tests.torture.verify import Found, verify
from tests.torture.worker import Part

MB = 1_000_000
ROOMY, TIGHT = 2_000 * MB, 12 * MB
OWNER_SLOT, AUTO_SLOT = 0, 4
ENGINES = ["auto", "auto", "threads", "io_uring_plain"]
# The calls a process makes on its way to a name, off it, and around times and the lock.
CUTS = [
    FileCall.LINK, FileCall.LINK, FileCall.SET_TIMES, FileCall.WRITE_AT, FileCall.ALLOCATE,
    FileCall.OPEN_TEMP, FileCall.UNLINK, FileCall.CLOSE, FileCall.MAKE_DIRECTORY,
    FileCall.STAT_FD, FileCall.OPEN_READ, FileCall.LIST, FileCall.SYNC,
]  # fmt: skip


@dataclass
class Place:
    """A root and the books on it; lives for several rounds."""

    root: Path
    roomy: bool
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def capacity(self) -> int:
        return ROOMY if self.roomy else TIGHT


@dataclass
class Outcome:
    kills: int
    refusals: int  # second owners that were turned away
    takeovers: int
    found: Found


class Round:
    def __init__(self, place: Place, seed: str, number: int, *, cut: bool) -> None:
        self.place, self.seed, self.cut = place, seed, cut
        self.rng = random.Random(seed)
        self.first = 7 * number
        self.starts = 0
        self.outcome = Outcome(0, 0, 0, Found())

    def run(self) -> Outcome:
        with Crowd(self.place.ledger) as crowd:
            self.crowd = crowd
            self.gather()
            if self.rng.random() < 0.25:
                self.each_in_turn()
            else:
                for _ in range(self.rng.randint(2, 4)):
                    self.wait_for_a_moment()
                    self.blow(self.victims())
            self.wait_for_a_moment()
            self.disperse()
            self.outcome.kills = crowd.kills
            place = self.place
            self.outcome.found = verify(place.root, place.ledger, place.capacity, roomy=place.roomy)
        return self.outcome

    # --------------------------------------------------------------------------------- starts

    def part(self, slot: int, role: str) -> Part:
        self.starts += 1
        scene = Scene(slot, self.first, self.place.roomy, private=False)
        cut = None
        if self.cut and self.rng.random() < 0.7:
            cut = (self.rng.choice(CUTS), self.rng.randrange(1, 60))
        return Part(
            root=str(self.place.root),
            role=role,
            capacity=self.place.capacity,
            seed=f"{self.seed} {slot} {self.starts}",
            scene=scene,
            engine=self.rng.choice(ENGINES),
            cut=cut,
        )

    def role_of(self, slot: int) -> str:
        return "auto" if slot == AUTO_SLOT and self.with_auto else "peer"

    def gather(self) -> None:
        self.with_auto = self.rng.random() < 0.75
        self.start_owner()
        for slot in range(1, SLOTS):
            self.start(slot, self.role_of(slot))
        self.second_owner_is_refused()

    def start(self, slot: int, role: str) -> Child:
        child = self.crowd.start(self.part(slot, role))
        self.crowd.until(
            lambda: child.is_open or child.ended or child.refused is not None, "a store opens"
        )
        if child.refused is not None and role != "owner":
            raise Broken(f"{child.name} was refused: {child.refused}")
        return child

    def start_owner(self) -> None:
        """In the owner's slot; a peer where an `auto` peer was quicker."""
        child = self.start(OWNER_SLOT, "owner")
        if child.refused is None:
            return
        self.check_refusal(child.refused)
        self.start(OWNER_SLOT, "peer")

    def second_owner_is_refused(self) -> None:
        """By name, while the first one certainly lives: it is asked again afterwards."""
        owner = self.crowd.owner()
        if owner is None or owner.part.cut:
            return
        try:
            open_blocking(self.place.root, pool="1MB").close_blocking()
        except OpenError as error:
            self.check_refusal(str(error))
        else:
            raise Broken(f"a second owner was let in beside {owner.name} (pid {owner.pid})")

    def check_refusal(self, message: str) -> None:
        self.outcome.refusals += 1
        pids = {child.pid for child in self.crowd.children.values()}
        named = re.search(r"has an owner already \(process (\d+)", message)
        if not named or int(named.group(1)) not in pids:
            raise Broken(f"refused, but not by the name of a living owner: {message}")

    # ---------------------------------------------------------------------------------- blows

    def wait_for_a_moment(self) -> None:
        """Any time, or a moment after an acknowledgement."""
        self.crowd.pass_time(self.rng.uniform(0.02, 0.4))
        if self.rng.random() < 0.5:
            before = self.crowd.heard
            if any(not child.part.cut for child in self.crowd.living()):
                self.crowd.until(lambda: self.crowd.heard > before, "something is acknowledged")
            self.crowd.pass_time(self.rng.choice([0, 0.0005, 0.002, 0.005]))

    def victims(self) -> list[Child]:
        living = self.crowd.living()
        owner = self.crowd.owner()
        kind = self.rng.choices(["owner", "one", "some", "all"], [4, 4, 1, 1])[0]
        if kind == "owner" and owner is not None:
            return [owner]
        if kind == "all" or not living:
            return living
        return self.rng.sample(living, 1 if kind != "some" else self.rng.randint(1, len(living)))

    def each_in_turn(self) -> None:
        for slot in range(SLOTS):
            self.wait_for_a_moment()
            child = self.crowd.children[slot]
            self.blow([] if child.ended else [child])

    def blow(self, victims: list[Child]) -> None:
        """SIGKILL; then those who are gone (also by a cut) come back while others went on."""
        owners = [child for child in victims if child.is_owner]
        if owners and self.rng.random() < 0.5:
            self.crowd.bystander(owners[0])  # whose descriptors must not keep the lock
        self.crowd.kill(victims)
        self.crowd.pass_time(self.rng.choice([0, 0, 0.05, 0.2]))
        self.take_over()
        for slot, child in list(self.crowd.children.items()):
            if child.ended and slot == OWNER_SLOT and self.crowd.owner() is None:
                self.start_owner()
            elif child.ended:
                self.start(slot, self.role_of(slot))

    def take_over(self) -> None:
        """An `auto` peer that lives gets the lock by itself, in half of the cases before a new
        owner is tried."""
        auto = self.crowd.children[AUTO_SLOT]
        alone = self.crowd.owner() is None and not auto.ended and auto.part.role == "auto"
        if alone and self.rng.random() < 0.5:
            self.crowd.until(lambda: auto.is_owner or auto.ended, "an auto peer takes over")
            self.outcome.takeovers += auto.is_owner
            self.second_owner_is_refused()

    def disperse(self) -> None:
        """The end: killed, closed, or some of both."""
        living = self.crowd.living()
        kind = self.rng.choice(["kill", "stop", "both"])
        self.rng.shuffle(living)
        half = {"kill": 0, "stop": len(living), "both": len(living) // 2}[kind]
        self.crowd.stop(living[:half])
        self.crowd.kill([child for child in living[half:] if not child.ended])
