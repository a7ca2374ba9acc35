"""One process of a crowd on one root: matches, loads, checks every byte, puts what is missing,
until it is killed or its standard input ends. Reports a line of JSON after every few steps.

python -m tests.support.crowd_member ROOT ROLE CAPACITY SEED
"""

import json
import random
import select
import sys

from kvstore import OpenError
from kvstore.store import open_blocking
from tests.support.prompts import GRID, eventually, load, put, small_layout, tokens

PROMPTS = 40
STEPS = 10  # between two reports


def main(root: str, role: str, capacity: str, seed: str) -> None:
    rng = random.Random(int(seed))
    try:
        store = open_blocking(root, capacity=int(capacity), pool="16MB", role=role, min_age=1)
    except OpenError as error:
        print(json.dumps({"refused": str(error)}), flush=True)
        return
    kv = store.cache(small_layout())
    hits = 0
    with store:
        eventually(lambda: not store.info().roots[0].warming, "the scan ended")
        while not select.select([sys.stdin], [], [], 0)[0]:
            for _ in range(STEPS):
                name = rng.randrange(PROMPTS) if rng.random() < 0.8 else rng.random()
                chain = kv.keys(tokens(name, GRID + rng.randrange(4)))
                hits += load(kv, kv.find_blocking(chain))[0]
                if rng.random() < 0.5:
                    put(kv, chain)
                if rng.random() < 0.1:
                    store.drop_ram()
            root_info = store.info().roots[0]
            report = {
                "hits": hits,
                "owner": root_info.is_owner,
                "used": root_info.used_bytes,
                "published": store.stats().published_extents,
                "evicted": store.stats().evicted_extents,
                "quarantined": store.stats().quarantined_extents,
            }
            print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
