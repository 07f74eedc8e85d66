"""Benchmarks that make a table row by row, each row in a process of its own; rows that were not measured stay."""

import argparse
import fnmatch
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable


def row_apart(command: list[str], environment: dict, timeout: float | None = None) -> tuple[dict | None, str]:
    """What the command prints as its row, and what went wrong where it printed none.

    jaxlib runs collectives in as many threads as cores or devices, and waits for itself until it aborts where more of them are in flight.
    Then the command runs again with more threads (NPROC), which make steps slower, and the row says so as "jax_threads".
    timeout: seconds of all of these together. Raises subprocess.TimeoutExpired.
    """
    end = time.monotonic() + timeout if timeout else None
    environment = {name: value for name, value in (os.environ | environment).items() if name != "NPROC"}
    for threads in (0, 16, 32):
        done = subprocess.run(command, env=environment | ({"NPROC": str(threads)} if threads else {}), capture_output=True, text=True,
                              timeout=end and end - time.monotonic())
        rows = [line for line in done.stdout.splitlines() if line.startswith("row: ")]
        if rows:
            return json.loads(rows[-1].removeprefix("row: ")) | ({"jax_threads": threads} if threads else {}), ""
        if done.returncode != -signal.SIGABRT:
            break
    sys.stderr.write(done.stderr)
    return None, f"exit code {done.returncode}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"


def _measure_apart(script: str, name: str, turns: int, environment: dict) -> dict:
    row, failure = row_apart([sys.executable, script, "--one", name, "--turns", str(turns)], environment)
    if row is None:
        sys.exit(f"{name}: no row: {failure}")
    return {"name": name} | row


def _update(script: str, table: str, names: list[str], page: Callable[[list], str], row: dict) -> None:
    """Writes the row into TABLE.json and TABLE.md beside the script."""
    path = pathlib.Path(script).parent / f"{table}.json"
    rows = {row["name"]: row for row in json.loads(path.read_text())["rows"]} if path.exists() else {}
    rows[row["name"]] = row
    kept = [rows[name] for name in names if name in rows]
    lines = ",\n".join(" " + json.dumps(row) for row in kept)
    path.write_text(f'{{"rows": [\n{lines}\n]}}\n')
    path.with_suffix(".md").write_text(page(kept))


def run(script: str, description: str, table: str, names: list[str], measure: Callable[[str, int], dict],
        faults: Callable[[dict], list[str]], page: Callable[[list], str], environment: dict) -> None:
    """The command line of the benchmark `script`: measures rows by measure(name, turns), says faults(row), and ends the process.

    environment: what the rows' processes have besides. page: of all rows in the order of names, the text of TABLE.md.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", nargs="+", default=["*"], help="globs on names of models")
    parser.add_argument("--turns", type=int, default=9, help="turns that are measured (default: 9)")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--one", metavar="MODEL", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print("row: " + json.dumps(measure(args.one, args.turns)))
        return
    missed = 0
    for name in names:
        if not any(fnmatch.fnmatch(name, pattern) for pattern in args.filter):
            continue
        row = _measure_apart(script, name, args.turns, environment)
        print(json.dumps(row), *(f"  missed: {fault}" for fault in faults(row)), sep="\n", flush=True)
        missed += len(faults(row))
        if args.update:
            _update(script, table, names, page, row)
    sys.exit(missed > 0)
