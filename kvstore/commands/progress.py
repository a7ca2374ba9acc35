"""How far a long word has come, on a terminal's stderr: a bar where rich is installed, else a line
now and then. Nothing where stderr is no terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LINE_EVERY_S = 5.0

Progress = Callable[[float], None]


@contextmanager
def progress(what: str) -> Iterator[Progress]:
    """Call what it gives with the share that is done, 0 to 1."""
    if not sys.stderr.isatty():
        yield lambda fraction: None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress as Bar
    except ImportError:
        yield _lines(what)
        return
    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda fraction: bar.update(task, completed=fraction)


def _lines(what: str) -> Progress:
    hint = " (for a bar: pip install 'kvstore-nvme[cli]')"
    said = time.monotonic()

    def tell(fraction: float) -> None:
        nonlocal said, hint
        if time.monotonic() - said >= _LINE_EVERY_S:
            print(f"{what}: {fraction:.0%}{hint}", file=sys.stderr)
            said, hint = time.monotonic(), ""

    return tell
