"""Prints the requirements of pyproject.toml with the named extras, one a line.

pip can install a package's requirements only together with the package; set-up wants them first,
because the extension is built inside the finished environment. Reads the two plain arrays of
strings itself, since Python 3.10 has no TOML reader.
"""

import ast
import re
import sys
from pathlib import Path


def array(text: str, name: str) -> list[str]:
    """The array of strings called name in the text of pyproject.toml."""
    found = re.search(rf"^{name} = (\[.*?\"\s*,?\s*\])$", text, re.MULTILINE | re.DOTALL)
    if found is None:
        sys.exit(f"pyproject.toml has no array {name}")
    return list(ast.literal_eval(found.group(1)))


def requirements(text: str, extras: list[str]) -> list[str]:
    """Core dependencies plus those of the extras; an extra of our own is looked up in turn."""
    return array(text, "dependencies") + [line for one in extras for line in extra(text, one)]


def extra(text: str, name: str) -> list[str]:
    wanted = []
    for line in array(text, name):
        own = re.fullmatch(r"kvstore-nvme\[(\w+)\]", line)
        wanted += extra(text, own.group(1)) if own else [line]
    return wanted


if __name__ == "__main__":
    print("\n".join(requirements(Path("pyproject.toml").read_text(), sys.argv[1:])))
