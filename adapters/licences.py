"""Prints the licences of the crates that are compiled into the program, which must go where it goes.

    cargo metadata --format-version 1 --filter-platform x86_64-unknown-linux-gnu | python3 adapters/licences.py
"""

import json
import os
import sys

NAMES = ("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE")


def compiled_in(metadata):
    """Packages that the program needs when it runs, in the order of their names; ours are not among them."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    packages = {package["id"]: package for package in metadata["packages"]}
    ours = set(metadata["workspace_members"])
    waiting = [member for member in ours if packages[member]["name"] == "paceline"]
    found = set()
    while waiting:
        package = waiting.pop()
        if package in found:
            continue
        found.add(package)
        for dependency in nodes[package]["deps"]:
            # Procedural macros and build scripts run in the compiler and leave nothing of themselves.
            kinds = {kind["kind"] for kind in dependency["dep_kinds"]}
            macro = any("proc-macro" in target["kind"] for target in packages[dependency["pkg"]]["targets"])
            if None in kinds and not macro:
                waiting.append(dependency["pkg"])
    return sorted((packages[package] for package in found - ours), key=lambda package: (package["name"], package["version"]))


def texts(package):
    """The licence texts that a package came with."""
    folder = os.path.dirname(package["manifest_path"])
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name.upper().startswith(NAMES) and os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                yield file.read().strip()


def main():
    packages = compiled_in(json.load(sys.stdin))
    # Many crates have the same text, word for word.
    holders = {}
    print("The program contains these crates. Their licence texts follow, each once.\n")
    for package in packages:
        name = f"{package['name']} {package['version']}"
        found = list(texts(package))
        note = "" if found else "; its package has no licence text"
        print(f"{name}: {package['license'] or 'see its text'}{note}")
        for text in found:
            holders.setdefault(text, []).append(name)
    for text, names in holders.items():
        print(f"\n{'=' * 100}\n{', '.join(names)}\n\n{text}")


if __name__ == "__main__":
    main()
