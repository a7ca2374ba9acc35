"""Writes the first ```python block of a Markdown file to a file: readme_example.py README OUT."""

import re
import sys
from pathlib import Path


def first_example(text: str) -> str:
    """The code of the first fenced Python block; exits with a message when there is none."""
    found = re.search(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    if found is None:
        sys.exit("no ```python block found")
    return found.group(1)


if __name__ == "__main__":
    source, target = sys.argv[1:]
    Path(target).write_text(first_example(Path(source).read_text()))
