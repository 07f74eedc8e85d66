"""Checks that modules include and link each other only in the direction that ARCHITECTURE.md allows.

The table "module | may include" there is the only statement of the rule. For every module of minka/ this compares with it
  - each #include "minka/..." of its files, and
  - the DEPS in its CMake files, which must name every module that its files include.
Tests may also use what their TEST_DEPS name. Where the table "module | its rooms" names folders of a module, a file of one of them includes
of its module only what lies in the same room or in one before it. Prints one line per violation; exit code 1 if there is any.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
EVERYONE_MAY_INCLUDE = {"base"}


def read_rules(architecture):
    """Module -> modules that it may include, from the table rows `| \\`name\\` | \\`a\\`, \\`b\\` | purpose |`."""
    rules = {}
    in_table = False
    for line in architecture.read_text().splitlines():
        if line.startswith("| module | may include"):
            in_table = True
        elif in_table and not line.startswith("|"):
            break
        elif in_table:
            cells = line.split("|")
            allowed = set(re.findall(r"`([a-z_]+)`", cells[2]))
            for module in re.findall(r"`([a-z_]+)`", cells[1]):
                rules[module] = allowed
    all_modules = set(rules)
    for module, allowed in rules.items():
        unknown = allowed - all_modules
        if unknown:
            sys.exit(f"ARCHITECTURE.md: the row of {module} names {sorted(unknown)}, which have no row")
        allowed |= EVERYONE_MAY_INCLUDE | {module}
    if not rules:
        sys.exit("ARCHITECTURE.md: no table starting with '| module | may include'")
    return rules


def read_rooms(architecture):
    """Module -> its rooms in order, from the table rows `| \\`name\\` | \\`a\\`, \\`b\\` |`."""
    rooms = {}
    in_table = False
    for line in architecture.read_text().splitlines():
        if line.startswith("| module | its rooms"):
            in_table = True
        elif in_table and not line.startswith("|"):
            break
        elif in_table and not line.startswith("|---"):
            cells = line.split("|")
            rooms[cells[1].strip(" `")] = re.findall(r"`([a-z_]+)`", cells[2])
    return rooms


def check_rooms(module, rooms):
    folder = ROOT / "minka" / module
    for room in rooms:
        if not (folder / room).is_dir():
            yield f"minka/{module}: ARCHITECTURE.md names a room {room}, which is not there"
    for source in sorted([*folder.rglob("*.h"), *folder.rglob("*.cc")]):
        here = source.relative_to(folder).parts
        if len(here) == 1 or source.stem.endswith(("_test", "_fuzzer")):
            continue
        if here[0] not in rooms:
            yield f"{source.relative_to(ROOT)}: ARCHITECTURE.md names no room {here[0]}"
            continue
        for number, line in enumerate(source.read_text().splitlines(), 1):
            match = re.match(rf'\s*#\s*include\s+"minka/{module}/(?:([a-z_]+)/)?', line)
            if match and match.group(1) not in rooms[:rooms.index(here[0]) + 1]:
                yield f"{source.relative_to(ROOT)}:{number}: {here[0]} may not include {match.group(1) or 'what is in no room'}"


def module_of_target(target, modules):
    """minka_planner_intra_op -> planner: a target is named after its folder, which may lie deeper than the module."""
    name = target.removeprefix("minka_")
    candidates = [m for m in modules if name == m or name.startswith(m + "_")]
    return max(candidates, key=len, default=None)


def read_deps(cmake_file, modules):
    """The modules that a CMakeLists.txt links, by minka_module() or target_link_libraries(): (DEPS, TEST_DEPS)."""
    keywords = "NAME|SOURCES|DEPS|LIBS|TESTS|TEST_DEPS|TEST_LIBS|PLUGIN"
    found = {"DEPS": set(), "TEST_DEPS": set()}
    text = re.sub(r"#.*", "", cmake_file.read_text())
    for call in re.findall(r"minka_module\((.*?)\)", text, re.DOTALL):
        for keyword, values in re.findall(rf"\b({keywords})\b(.*?)(?=\b(?:{keywords})\b|$)", call, re.DOTALL):
            if keyword in found:
                found[keyword] |= {module_of_target(t, modules) for t in re.findall(r"minka_\w+", values)}
    for target, linked in re.findall(r"target_link_libraries\((\w+)(.*?)\)", text, re.DOTALL):
        kind = "TEST_DEPS" if target.endswith(("_test", "_fuzzer")) else "DEPS"
        found[kind] |= {module_of_target(t, modules) for t in re.findall(r"minka_\w+", linked)} - {None}
    return found["DEPS"], found["TEST_DEPS"]


def included_modules(source):
    for number, line in enumerate(source.read_text().splitlines(), 1):
        match = re.match(r'\s*#\s*include\s+"minka/([a-z_]+)/', line)
        if match:
            yield number, match.group(1)


def check_module(module, rules):
    folder = ROOT / "minka" / module
    deps, test_deps = set(), set()
    cmake_files = sorted(folder.rglob("CMakeLists.txt"))
    for cmake_file in cmake_files:
        d, t = read_deps(cmake_file, rules)
        deps |= d
        test_deps |= t
    for dep in sorted(deps - rules[module], key=str):
        yield f"minka/{module}: CMake DEPS name {dep}, which ARCHITECTURE.md does not allow"

    for source in sorted([*folder.rglob("*.h"), *folder.rglob("*.cc")]):
        is_test = source.stem.endswith(("_test", "_fuzzer")) or "test" in source.stem.split("_")
        for number, included in included_modules(source):
            where = f"{source.relative_to(ROOT)}:{number}"
            if included not in rules:
                yield f"{where}: minka/{included} has no row in ARCHITECTURE.md"
            elif included not in rules[module] and not (is_test and included in test_deps):
                yield f"{where}: {module} may not include {included}"
            elif cmake_files and included not in deps | test_deps | EVERYONE_MAY_INCLUDE | {module}:
                yield f"{where}: {included} is included but not among the DEPS of {module}"


def main():
    rules = read_rules(ROOT / "ARCHITECTURE.md")
    problems = []
    for folder in sorted(p for p in (ROOT / "minka").iterdir() if p.is_dir()):
        if folder.name not in rules:
            problems.append(f"minka/{folder.name}: has no row in ARCHITECTURE.md")
        else:
            problems.extend(check_module(folder.name, rules))
    for module, rooms in read_rooms(ROOT / "ARCHITECTURE.md").items():
        problems.extend(check_rooms(module, rooms))
    print("\n".join(problems) or "include direction: ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
