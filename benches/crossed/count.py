#!/usr/bin/env python3
"""Counts the files and functions that one operation crosses.

    benches/crossed/count.py              the table of benches/README.md
    benches/crossed/count.py emit         each function that one emit crosses, with its file

The operations are in `main.rs`. They are built without optimization and without the passes that inline functions with
`#[inline(always)]`, so that each call in the source is a call in the program. Each operation runs a few times without being
counted; then callgrind, a tool of valgrind, reports the functions that the operation enters. A function counts once, even if
it is called often or for several types. A closure or an async block counts as part of the function that contains it.
Functions of std and of other crates do not count.
"""

import json
import os
import re
import subprocess
import sys
import tempfile

OURS = r"/(emitter|runtime|middleware-builtin)/src/.*"
TRACING = r"/(tracing|tracing-core|tracing-subscriber|sharded-slab)-[\d.]+/src/.*"
TOWER = r"/(tower|tower-layer|tower-service|tokio-util)-[\d.]+/src/.*"

# The name of each row, its operation, the operation to subtract, and the pattern of its files.
ROWS = [
    ("one emit with one sync listener", "emit", None, OURS),
    ("… an event of tracing under one layer", "tracing", None, TRACING),
    ("a run with one listener", "run", None, OURS),
    ("… added by `Timeout` and `Concurrency` around it", "middlewares", "run", OURS),
    ("… added by tower's two layers around a service", "tower-layers", "tower", TOWER),
]


def build():
    benches = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    target = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(benches, "target")), "crossed")
    flags = {"RUSTFLAGS": "-C no-prepopulate-passes", "CARGO_PROFILE_DEV_DEBUG": "line-tables-only"}
    command = ["cargo", "build", "--manifest-path", os.path.join(benches, "Cargo.toml"), "--bench", "crossed"]
    command += ["--target-dir", target, "--message-format=json-render-diagnostics"]
    built = subprocess.run(command, env=os.environ | flags, stdout=subprocess.PIPE, text=True, check=True)
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    return next(m["executable"] for m in messages if m.get("executable") and m["target"]["name"] == "crossed")


def crossed(program, operation, files):
    """Returns the functions that the operation enters, each with its file, if the file matches the pattern `files`."""
    with tempfile.NamedTemporaryFile("r") as out:
        options = ["--compress-strings=no", f"--callgrind-out-file={out.name}"]
        options += ["--collect-atstart=no", "--toggle-collect=*while_collecting*"]
        subprocess.run(["valgrind", "--tool=callgrind", "-q", *options, program, operation], check=True)
        found, file = set(), None
        for line in out:
            key, _, value = line.rstrip("\n").partition("=")
            if key == "fl":
                file = re.search(files, value)
            elif key == "fn" and file:
                found.add((file.group().lstrip("/"), plain(value)))
    return found


def plain(function):
    """Removes callgrind's mark of recursion, the hash and the closures from a function's name."""
    return re.sub(r"('\d+$|::h[0-9a-f]{16}|::\{\{closure\}\}.*)", "", function)


def main():
    program = build()
    if len(sys.argv) > 1:
        for file, function in sorted(crossed(program, sys.argv[1], OURS)):
            print(f"{file:40} {function}")
        return
    print("| | files | functions |\n|---|---:|---:|")
    for name, operation, beyond, files in ROWS:
        found = crossed(program, operation, files)
        known = crossed(program, beyond, files) if beyond else set()
        more = {file for file, _ in found} - {file for file, _ in known}
        print(f"| {name} | {len(more)} | {len(found - known)} |")


main()
