"""How long `import minka` takes, beside numpy, which it imports, and a Python that imports nothing.

    make python
    PYTHONPATH=build/release/python build/venv-jax/bin/python benchmarks/python/import_benchmark.py

Fresh processes take turns, files are read from the system's cache; the goal is at most 0.3 s more than no import at all.
"""

import argparse
import statistics
import subprocess
import sys
import time

PROGRAMS = {"no import": "", "import numpy": "import numpy", "import minka": "import minka"}
GOAL_SECONDS = 0.3


def seconds_of(program):
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="processes of each kind (default: 15)")
    rounds = parser.parse_args().rounds
    for program in PROGRAMS.values():
        seconds_of(program)  # fills the system's cache
    seconds = {name: [] for name in PROGRAMS}
    for _ in range(rounds):
        for name, program in PROGRAMS.items():
            seconds[name].append(seconds_of(program))
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    print(f"{'':14}{'median s':>10}{'more than no import s':>24}")
    for name, median in medians.items():
        print(f"{name:14}{median:10.3f}{median - medians['no import']:24.3f}")
    more = medians["import minka"] - medians["no import"]
    print(f"goal: at most {GOAL_SECONDS} s more: {'met' if more <= GOAL_SECONDS else 'missed'}")


if __name__ == "__main__":
    main()
