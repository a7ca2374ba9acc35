"""fio for a KV store: jobs in fio's words plus a store's own, each figure a share of the ceiling.

    python benches/kvfio.py benches/jobs/prefill_cold_prefix.fio --output-format=json

Any word of a job file can be given as --word=value; it then holds for every job. Each round
measures the device without a store (ceiling/) and the store, in turn. Nothing is asserted.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import fio_json
import jobfile
import kvstore
import plots
from image import Refused, mounted_image
from job_run import How, JobRun, capacity_bytes, need_bytes
from jobfile import Job, JobError
from kvstore.raw_io import DEPTHS
from measure import Place, check_place, command_line, emit, place_of, skip

SMALL_DEPTHS = (8, 32)
SMALL = {
    "loops": "2",
    "numjobs": "8",
    "prefix_tokens": "2048",
    "common_tokens": "1024",
    "turn_tokens": "1024",
    "turns": "3",
    "pool": "256m",
}


async def run_in(job: Job, folder: Path, options: argparse.Namespace) -> fio_json.Result:
    layout = job.kv_layout()
    depths = SMALL_DEPTHS if options.small else DEPTHS
    how = How(options.ceiling_seconds, depths, with_fio=not options.no_fio)
    roots = [folder / f"root{number}" for number in range(job.roots)]
    for root in roots:
        root.mkdir()
    store = await kvstore.open(
        *roots,
        capacity=capacity_bytes(job, layout),
        pool=job.pool,
        engine=job.ioengine,
        io_depth=job.iodepth,
        reserve=0,
    )
    async with store:
        with JobRun(job, store, layout, folder, how=how) as run:
            return await run.measure()


def run_job(job: Job, options: argparse.Namespace) -> fio_json.Result:
    """Refused: there is no such file system here."""
    need = need_bytes(job, job.kv_layout())
    place = Path(job.directory)
    check_place(place, need)
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvfio-", dir=place))
        folder = Path(name)
        if job.filesystem:
            folder = stack.enter_context(mounted_image(folder, job.filesystem, need * 5 // 4))
        return asyncio.run(run_in(job, folder, options))


def words(results: list[fio_json.Result], place: Place) -> str:
    blocks = [f"$ {command_line()}\non {place}"]
    blocks += ["\n".join([f"[{one.job.name}]", *one.lines]) for one in results]
    return "\n\n".join(blocks)


def parse_arguments(arguments: list[str]) -> tuple[argparse.Namespace, dict[str, str]]:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="words of a job file:\n" + jobfile.words_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("jobs", type=Path, nargs="+", help="job files")
    parser.add_argument("--output-format", choices=("normal", "json"), default="normal")
    parser.add_argument("--output", type=Path, help="instead of stdout")
    parser.add_argument("--section", action="append", help="only these sections")
    parser.add_argument(
        "--ceiling-seconds", type=float, default=0.2, help="of raw reads per depth and round"
    )
    parser.add_argument("--no-fio", action="store_true", help="the ceiling without fio")
    parser.add_argument("--small", action="store_true", help="seconds: does it work at all?")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="latencies of single reads, CDF")
    for word, means in jobfile.WORDS.items():
        parser.add_argument(f"--{word}", help=argparse.SUPPRESS, dest=f"word_{word}", metavar=means)
    options = parser.parse_args(arguments)
    given = {word: getattr(options, f"word_{word}") for word in jobfile.WORDS}
    return options, {word: value for word, value in given.items() if value is not None}


def read_jobs(options: argparse.Namespace, given: dict[str, str]) -> list[Job]:
    jobs = list(jobfile.read(options.jobs, given))
    if options.small:
        options.ceiling_seconds = min(options.ceiling_seconds, 0.05)
        jobs = [jobfile.smaller(job, SMALL) for job in jobs]
    return [job for job in jobs if not options.section or job.name in options.section]


def main() -> None:
    options, given = parse_arguments(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an image is unmounted all the same
    try:
        jobs = read_jobs(options, given)
        results, skipped = [], {}
        for job in jobs:
            try:
                results.append(run_job(job, options))
            except Refused as error:
                skip(f"[{job.name}] {error}")
                skipped[job.name] = str(error)
    except JobError as error:
        sys.exit(str(error))
    if not jobs:
        sys.exit(f"no section is called {options.section}")
    place = place_of(Path(jobs[0].directory))
    if options.plot and results:
        plots.latency_cdf(options.plot, results)
    emit(
        fio_json.document(results, skipped, command_line(), str(place)),
        words(results, place),
        as_json=options.output_format == "json",
        output=options.output,
    )


if __name__ == "__main__":
    main()
