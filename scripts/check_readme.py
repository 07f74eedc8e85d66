"""Checks that what README.md and the guides show still works.

  - `make x` in a console block: the target must exist.
  - `build/minka ...` in a console block: is run and must exit with 0 (continued lines end in a backslash).
  - a cpp or python block: its lines must stand, one after the other, in a program under examples/ or tests/install/, indentation
    apart.
  - `--flag` in the text, where a command of minka has it: one of the console blocks must use it, or a sh block, which shows what
    needs other machines and is not run; flags in sh blocks must exist.

Exit code 1 if anything fails.
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIME_LIMIT_SECONDS = 600
PAGES = ["README.md", "docs/guides/coming-from-alpa.md", "docs/guides/inspecting.md", "docs/guides/jax.md", "docs/guides/pipelines.md",
         "docs/guides/planning.md", "docs/guides/solver.md", "docs/guides/training.md", "docs/guides/tuning.md"]
FLAG = r"(?<![\w-])--[a-z][a-z-]*"


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(text):
    for block in blocks(text, "console"):
        for line in block.replace("\\\n", " ").splitlines():
            command = re.sub(r"\s+#.*", "", line.removeprefix("$ ")).strip()
            if command.startswith(("make ", "build/minka")):
                yield command


def folder_of_its_own(folder):
    """Like the repository's root, but what is written into build/ stays apart, so that pages can be checked side by side."""
    (folder / "build").mkdir()
    for path in [*ROOT.iterdir(), *(ROOT / "build").glob("venv*"), *(ROOT / "build/" / name for name in ("release", "minka"))]:
        link = folder / path.relative_to(ROOT)
        if not link.exists():
            link.symlink_to(path)


def check_command(command, folder):
    shown = command
    if command.startswith("make "):
        command = command.replace("make ", "make --dry-run ", 1)
    try:
        done = subprocess.run(command, shell=True, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=TIME_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"{shown}: took more than {TIME_LIMIT_SECONDS} s"
    if done.returncode != 0:
        return f"{shown}: exit code {done.returncode}\n{done.stderr[-2000:]}"
    return None


def plain_lines(text):
    return [line.strip() for line in text.splitlines() if line.strip()]


def is_in_a_program(block, suffix):
    wanted = plain_lines(block)
    for folder in ("examples", "tests/install"):
        for source in sorted((ROOT / folder).rglob("*" + suffix)):
            lines = plain_lines(source.read_text())
            if any(lines[i:i + len(wanted)] == wanted for i in range(len(lines))):
                return True
    return False


def help_of(*command):
    return subprocess.run(["build/minka", *command, "--help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def flags_never_shown(texts):
    """(page, flag) for every flag of minka that a page's text names and no console block uses; texts by page."""
    subcommands = re.findall(r"^  (\w+) ", help_of().partition("Subcommands:")[2], re.MULTILINE)
    existing = {flag for subcommand in subcommands for flag in re.findall(rf"^  ({FLAG})", help_of(subcommand), re.MULTILINE)}
    not_run = {flag for text in texts.values() for block in blocks(text, "sh") for flag in re.findall(FLAG, block)}
    yield from (("a sh block", f"{flag}, which does not exist") for flag in sorted(not_run - existing))
    shown = not_run | {flag for text in texts.values() for command in commands(text) for flag in re.findall(FLAG, command)}
    for page, text in texts.items():
        prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        yield from ((page, flag) for flag in sorted(set(re.findall(FLAG, prose)) & existing - shown))


def check_commands(page, text):
    """The problems of a page's commands, one after the other."""
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        folder_of_its_own(pathlib.Path(folder))
        for command in commands(text):
            print(f"{page}: {command}", flush=True)
            problems.append(check_command(command, folder))
    return problems


def main():
    texts = {page: (ROOT / page).read_text() for page in PAGES}
    problems = [f"{page}: no console block uses {flag}" for page, flag in flags_never_shown(texts)]
    # The page with `minka profile`, which takes longest, first.
    pages = sorted(texts, key=lambda page: "minka profile" not in texts[page])
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for of_page in pool.map(lambda page: check_commands(page, texts[page]), pages):
            problems += of_page
    for page, text in texts.items():
        for language, suffix in (("cpp", ".cc"), ("python", ".py")):
            for block in blocks(text, language):
                if not is_in_a_program(block, suffix):
                    problems.append(f"{page}: this code stands in no program under examples/ or tests/install/:\n{block}")
    problems = [p for p in problems if p]
    print("\n".join(problems) or "README.md and the guides: ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
