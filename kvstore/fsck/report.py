"""What a check of a root can find, and how it is told. Plain data, msgspec-encodable.

A finding is an error (something is wrong: data that cannot be served, space that nobody gives
back, a file that others can read) or a note (worth knowing, nothing is wrong).
"""

from collections import Counter

import msgspec

from kvstore.units import format_size

CLEAN, CORRECTED, UNCORRECTED, OPERATIONAL, USAGE, CANCELLED = 0, 1, 4, 8, 16, 32
_SHOWN_OF_A_KIND = 20


class Kind(msgspec.Struct, frozen=True):
    """What a finding means, and what --repair does about it ("": it is left alone)."""

    meaning: str
    repair: str = ""
    error: bool = True


_ASIDE = "moved to quarantine/"
_REMOVED = "removed"

KINDS = {
    "header": Kind("the header is damaged: its blocks cannot be served", _ASIDE),
    "length": Kind("cut short or grown: its blocks cannot be served", _ASIDE),
    "cell": Kind("a cell is not what its checksum says: the extent cannot be served", _ASIDE),
    "not-a-file": Kind("not a regular file under the name of an extent", _ASIDE),
    "misnamed": Kind("a whole extent, but its name is none of its keys: nobody finds it", _ASIDE),
    "bucket": Kind("lies in the wrong bucket: nobody finds it", _ASIDE),
    "namespace": Kind("an extent of another layout: it is not served here", _ASIDE),
    "unreadable": Kind("could not be read, so it was not checked"),
    "temporary": Kind("left by a writer that died: holds space", _REMOVED),
    "mode": Kind("others may get at it: directories are 0700, files 0600", "set right"),
    "owner": Kind("of another user than root.json: chown it"),
    "last-use": Kind("last use (atime) lies in the future: it would be evicted last", "set to now"),
    "valid-until": Kind(
        "valid until (mtime) lies further ahead than any time to live", "set to now + that time"
    ),
    "ring": Kind("removed.ring cannot be read: misses have no reason", _REMOVED),
    "layout": Kind("layout.json cannot be read or tells of another layout", _REMOVED),
    "identity": Kind("root.json cannot be read: the root has no identity", _REMOVED),
    "fresh-temporary": Kind("being written, or left within the last hour", error=False),
    "later-version": Kind("of a later version, or with a section unknown here", error=False),
    "foreign": Kind("not a name of ours", error=False),
    "empty-bucket": Kind("a directory without an extent", _REMOVED, error=False),
    "expired": Kind("its time to live has passed: the owner removes it", error=False),
    "quarantined": Kind("damaged files that were moved aside: `kvstore quarantine`", error=False),
    "no-identity": Kind("there is no root.json: the next owner writes one", error=False),
    "no-layout": Kind("there is no layout.json: the next writer makes one", error=False),
    "recency": Kind("checking changed its last use: run as the user that owns it", error=False),
}
"""Every kind of finding."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """path: below the root. repair: what --repair does, "" for nothing. corrected: it did."""

    path: str
    kind: str
    error: bool
    meaning: str
    detail: str
    repair: str
    corrected: bool


class NamespaceReport(msgspec.Struct, kw_only=True):
    """Of good extents. charged_bytes: on disk, what a store charges to its budget.
    duplicate_blocks: found in a second file, too (fine: the first one serves)."""

    name: str
    model: str
    extents: int = 0
    blocks: int = 0
    duplicate_blocks: int = 0
    charged_bytes: int = 0


class Report(msgspec.Struct, kw_only=True):
    """One root. owner: who has it open, "" when nobody does. Bytes are on disk, without those of
    directories: charged_bytes is what a store charges to its budget for extents; besides it there
    are quarantine_bytes, and other_bytes (temporaries, foreign and damaged files, root.json ...).
    read_bytes: of cells, verified with --deep. code: exit code as fsck(8)."""

    root: str
    owner: str
    deep: bool
    repair: bool
    namespaces: list[NamespaceReport] = msgspec.field(default_factory=list)
    findings: list[Finding] = msgspec.field(default_factory=list)
    extents: int = 0
    charged_bytes: int = 0
    quarantine_files: int = 0
    quarantine_bytes: int = 0
    other_bytes: int = 0
    read_bytes: int = 0
    cancelled: bool = False
    code: int = CLEAN

    def close(self) -> None:
        """Sums up, once everything was looked at."""
        self.extents = sum(ns.extents for ns in self.namespaces)
        self.charged_bytes = sum(ns.charged_bytes for ns in self.namespaces)
        for finding in self.findings:
            if finding.kind == "unreadable":
                self.code |= OPERATIONAL
            elif finding.error:
                self.code |= CORRECTED if finding.corrected else UNCORRECTED
        self.code |= CANCELLED if self.cancelled else 0


def render(report: Report) -> str:
    """For people; `kvstore fsck` prints it."""
    lines = [f"root  {report.root}" + (f", open in {report.owner}" if report.owner else "")]
    for ns in report.namespaces:
        again = f", {ns.duplicate_blocks} held twice" if ns.duplicate_blocks else ""
        lines.append(
            f"      {ns.name} {ns.model or '?'}: {ns.extents} extents, {ns.blocks} blocks{again},"
            f" {format_size(ns.charged_bytes)}"
        )
    lines.append(
        f"      {format_size(report.charged_bytes)} in extents,"
        f" {format_size(report.quarantine_bytes)} in quarantine ({report.quarantine_files} files),"
        f" {format_size(report.other_bytes)} in other files"
        + (f"; {format_size(report.read_bytes)} of cells verified" if report.deep else "")
    )
    counts = Counter(finding.kind for finding in report.findings)
    for kind, count in counts.items():
        lines.append(f"{'error' if KINDS[kind].error else 'note '} {kind}: {_told(kind, report)}")
        of_kind = [finding for finding in report.findings if finding.kind == kind]
        lines += [f"      {_line(finding)}" for finding in of_kind[:_SHOWN_OF_A_KIND]]
        if count > _SHOWN_OF_A_KIND:
            lines.append(f"      and {count - _SHOWN_OF_A_KIND} more (all of them with --json)")
    lines.append(_verdict(report))
    return "\n".join(lines)


def _told(kind: str, report: Report) -> str:
    fix = KINDS[kind].repair
    return KINDS[kind].meaning + (f" (--repair: {fix})" if fix and not report.repair else "")


def _line(finding: Finding) -> str:
    detail = f" ({finding.detail})" if finding.detail else ""
    return finding.path + detail + (f": {finding.repair}" if finding.corrected else "")


def _verdict(report: Report) -> str:
    errors = [finding for finding in report.findings if finding.error]
    left = sum(not finding.corrected for finding in errors)
    if report.cancelled:
        return "cancelled: not everything was checked"
    if not errors:
        return "clean" if report.deep else "clean (headers and names; --deep reads every cell)"
    return f"{len(errors) - left} errors corrected, {left} left"
