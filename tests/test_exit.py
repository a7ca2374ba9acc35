"""Processes that end with everything in flight: by the end of the program, sys.exit, an exception,
a signal, os._exit, with loads in loops and in daemon threads. They end, quietly, and what they had
published is served by the next owner at once.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.stores import cells_of, check_load, layout, opened, prompt

BLOCKS = 8

# The store, a prompt, and everything that can be in flight: loads through the pool and into memory,
# a writer with puts, a commit, daemon threads inside blocking calls, a loop with tasks.
BUSY = """
import asyncio, os, signal, sys, threading, time
from pathlib import Path
import kvstore
from kvstore import Pages, alloc
from tests.support.stores import LAYERS, PART_BYTES, cells_of, layout, prompt, write

store = kvstore.open_blocking(Path(sys.argv[1]), pool="16MiB")
kv = store.cache(layout())
chain, cells = kv.keys(prompt(8)), cells_of(layout(), 8)
assert write(kv, chain, cells) == 8


def loads():
    while True:
        store.drop_ram()
        with kv.load(kv.match(chain)) as load:
            for layer in load:
                pass


def puts(seed):
    while True:
        seed += 1000
        write(kv, kv.keys(prompt(2, seed)), [{"latent": parts["latent"][:2]} for parts in cells])


def blocked():
    load.wait(LAYERS - 1)
    load.wait_drained()
    threading.Event().wait()


memory = [alloc(8 * PART_BYTES) for _ in range(LAYERS)]
load = kv.load(kv.match(chain), into=Pages.contiguous({"latent": memory}), deadline="1000d")
threads = [threading.Thread(target=loads, daemon=True) for _ in range(2)]
threads += [threading.Thread(target=puts, args=(n,), daemon=True) for n in range(1, 3)]
threads += [threading.Thread(target=blocked, daemon=True)]
writer = kv.writer(kv.keys(prompt(1, 77)))
handle = writer.put(0, (0, 1), [cells[0]["latent"][:1]])


async def busy(end):
    tasks = [asyncio.ensure_future(in_loop()) for _ in range(3)]
    await asyncio.sleep(0)
    end()


async def in_loop():
    while True:
        store.drop_ram()
        async with kv.load(kv.match(chain)) as load:
            async for layer in load:
                pass


for thread in threads:
    thread.start()
"""

ENDS = {
    "the end of the program": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "sys.exit in a loop": ("asyncio.run(busy(lambda: sys.exit(3)))", 3),
    "an exception": ("raise KeyError('of the program')", 1),
    "an exception in a loop": ("asyncio.run(busy(lambda: {}['of the program']))", 1),
    "a loop that is left": (
        "loop = asyncio.new_event_loop(); task = loop.create_task(in_loop());"
        " loop.run_until_complete(asyncio.sleep(0.01))",
        0,
    ),
    "os._exit": ("os._exit(4)", 4),
    "os._exit in a loop": ("asyncio.run(busy(lambda: os._exit(4)))", 4),
    "Ctrl-C": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", -signal.SIGINT),
    "a kill": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "a close that another thread has begun": (
        "threading.Thread(target=store.close_blocking, daemon=True).start()",
        0,
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_process_ends_with_everything_in_flight(tmp_path: Path, end: str) -> None:
    last_words, code = ENDS[end]
    program = textwrap.dedent(BUSY) + last_words
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program, str(tmp_path)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert ended.returncode == code, ended.stderr
    assert "Fatal Python error" not in ended.stderr
    assert "Exception ignored" not in ended.stderr, ended.stderr
    with opened(tmp_path) as store:
        kv = store.cache(layout())
        hit = kv.find_blocking(kv.keys(prompt(BLOCKS)))
        with kv.load(hit) as load:
            check_load(load, cells_of(layout(), BLOCKS), BLOCKS)
        assert store.stats().quarantined_extents == 0
