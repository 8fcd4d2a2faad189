"""Runs the benchmarks of two revisions interleaved and compares the ratios to the floors.

    python -m bench.compare BASE [--rounds 5] [controller handoff invoke results] [-- --functions 1]

The head is the current commit. Each revision has a git worktree with a virtual environment of its own in
`.local/bench/worktrees`. A round runs each benchmark of the base and then of the head. So if another program slows down
the machine for some minutes, it affects both. The exit status is 1 if a ratio is worse by more than the spread of the
runs.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.comparison import RunReport, compare_runs, comparison_table, missing_rows
from bench.report import REPORT_FOLDER, log_progress
from localcluster.paths import PROJECT_ROOT

BENCHMARKS = ("controller", "handoff", "invoke", "results")
WORKTREE_FOLDER = REPORT_FOLDER / "worktrees"
PARENT_MAKE_VARIABLES = ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "GPU_RUNTIME_LOCAL_STATE_DIR")
"""Variables of this process that would change what a benchmark does in its worktree."""


@dataclass(frozen=True)
class CompareOptions:
    base: str
    rounds: int
    benchmarks: tuple[str, ...]
    benchmark_options: tuple[str, ...]
    """Options for the benchmark itself: the arguments after `--`."""


def main() -> None:
    options = parse_arguments(sys.argv[1:])
    base, head = run_interleaved([commit_of(options.base), commit_of("HEAD")], options)
    sys.exit(print_comparison(base, head))


def parse_arguments(arguments: Sequence[str]) -> CompareOptions:
    index = arguments.index("--") if "--" in arguments else len(arguments)
    benchmark_options = tuple(arguments[index + 1 :])
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("base", help="the revision to compare with, for example main or HEAD~3")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each revision, at least 3 (default 5)")
    parser.add_argument("benchmarks", nargs="*", metavar="BENCHMARK", help=f"default: {' '.join(BENCHMARKS)}")
    options = parser.parse_intermixed_args(arguments[:index])
    if options.rounds < 3:  # with 2 rounds, all runs of the head are slower in one of six comparisons by chance
        parser.error("--rounds: the spread of the runs needs at least 3 rounds")
    if unknown := set(options.benchmarks) - set(BENCHMARKS):
        parser.error(f"{', '.join(sorted(unknown))}: use {', '.join(BENCHMARKS)}")
    if benchmark_options and len(options.benchmarks) != 1:
        parser.error("options of a benchmark need exactly one benchmark")
    return CompareOptions(options.base, options.rounds, tuple(options.benchmarks) or BENCHMARKS, benchmark_options)


def run_interleaved(revisions: Sequence[str], options: CompareOptions) -> list[list[RunReport]]:
    """Return the reports of each revision, in the order of the runs."""
    if git("status", "--porcelain", "--untracked-files=no"):
        log_progress("uncommitted changes are not measured: the head is the current commit")
    worktrees = prepare_worktrees(revisions)
    reports: list[list[RunReport]] = [[] for _ in revisions]
    for number in range(1, options.rounds + 1):
        for benchmark in options.benchmarks:
            for revision, worktree, runs in zip(revisions, worktrees, reports, strict=True):
                log_progress(f"round {number} of {options.rounds}: {benchmark} of {revision[:12]}")
                runs.append(run_benchmark(worktree, benchmark, options.benchmark_options))
    return reports


def run_benchmark(worktree: Path, benchmark: str, options: Sequence[str]) -> RunReport:
    """Run a benchmark with the Makefile of its revision. A missed target is no error."""
    folder = worktree / ".local" / "bench"
    for path in folder.glob("*.json"):
        path.unlink()
    run_make(worktree, f"bench-{benchmark}", f"ARGS={' '.join(options)}")
    written = list(folder.glob("*.json"))
    if len(written) != 1:
        raise SystemExit(f"bench-{benchmark} in {worktree} failed: it wrote {len(written)} reports instead of 1")
    return msgspec.json.decode(written[0].read_bytes(), type=RunReport)


def prepare_worktrees(revisions: Sequence[str]) -> list[Path]:
    """Create a worktree for each revision, and remove the worktrees of other revisions.

    Both revisions get a worktree of their own, even if they are the same commit. Such a run shows the noise.
    """
    paths = [
        WORKTREE_FOLDER / f"{role}-{revision[:12]}" for role, revision in zip(("base", "head"), revisions, strict=True)
    ]
    for path in WORKTREE_FOLDER.glob("*"):
        if path not in paths:
            git("worktree", "remove", "--force", str(path))
    for path, revision in zip(paths, revisions, strict=True):
        if not path.exists():
            git("worktree", "prune")
            git("worktree", "add", "--detach", str(path), revision)
        if run_make(path, ".venv/bin/.ready"):
            raise SystemExit(f"the virtual environment in {path} could not be created")
    return paths


def print_comparison(base: Sequence[RunReport], head: Sequence[RunReport]) -> int:
    comparisons = compare_runs(base, head)
    if not comparisons:
        raise SystemExit("the revisions have no figure with a floor in common")
    print("\n" + "\n".join(comparison_table(comparisons)), flush=True)
    for label in missing_rows(base, head):
        print(f"not compared, because only one revision has it: {label}", flush=True)
    return int(any(each.change == "WORSE" for each in comparisons))


def commit_of(revision: str) -> str:
    return git("rev-parse", "--verify", f"{revision}^{{commit}}")


def git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(PROJECT_ROOT), *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout.strip()


def run_make(folder: Path, *arguments: str) -> int:
    environment = {name: value for name, value in os.environ.items() if name not in PARENT_MAKE_VARIABLES}
    return subprocess.run(
        ["make", "--no-print-directory", *arguments], cwd=folder, env=environment, stdout=sys.stderr, check=False
    ).returncode


if __name__ == "__main__":
    main()
