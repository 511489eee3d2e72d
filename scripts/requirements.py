"""What pyproject.toml asks for: ``list`` it for pip, or say what is ``missing`` here.

Usage: ``requirements.py list | no-deps | missing [EXTRA ...]``

``missing`` runs at every start, in an environment that may hold nothing at all. So it needs only
the standard library, reads pyproject.toml by hand (tomllib is new in 3.11) and takes versions from
the names of the ``*.dist-info`` folders: a few milliseconds instead of a hundred.
"""

import os
import re
import sys

PYPROJECT = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "pyproject.toml")


def read_list(text: str, key: str) -> list[str]:
    """The strings of ``key = [...]`` in the text of pyproject.toml."""
    body = re.search(rf"^{re.escape(key)} = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
    if body is None:
        raise SystemExit(f"pyproject.toml has no list named {key!r}")
    return re.findall(r'"([^"]+)"', re.sub(r"^\s*#.*", "", body[1], flags=re.MULTILINE))


def requirements(text: str, extras: list[str]) -> list[str]:
    """The dependencies and those of the extras, with the MindSpore that the user asked for."""
    found = [line for key in ("dependencies", *extras) for line in read_list(text, key)]
    chosen = os.environ.get("IMPALA_MS_MINDSPORE")
    return [
        f"mindspore=={chosen}" if chosen and line.startswith("mindspore>") else line
        for line in found
    ]


def installed() -> dict[str, str]:
    """Version by normalised name of everything on this interpreter's path."""
    versions: dict[str, str] = {}
    for folder in sys.path:
        if os.path.isdir(folder):
            for entry in os.listdir(folder):
                if entry.endswith(".dist-info"):
                    name, _, version = entry[: -len(".dist-info")].partition("-")
                    versions.setdefault(normalise(name), version)
    return versions


def normalise(name: str) -> str:
    """The one spelling of a distribution's name: ``types-PyYAML`` is ``types_pyyaml``."""
    return re.sub(r"[-_.]+", "_", name).lower()


def missing(wanted: list[str]) -> list[str]:
    """The requirements that this environment does not meet."""
    versions = installed()
    return [line for line in wanted if not is_met(line, versions)]


def is_met(requirement: str, versions: dict[str, str]) -> bool:
    """Whether ``name>=1.2,<2`` holds; release numbers only, which is all that is used here."""
    name, bounds = re.fullmatch(r"([\w.-]+?)\s*((?:[<>=]=?.*)?)", requirement).groups()
    version = versions.get(normalise(name))
    return version is not None and all(
        holds(version, *re.fullmatch(r"\s*(<=|>=|==|<|>)\s*([\d.]+)\s*", bound).groups())
        for bound in bounds.split(",")
        if bound
    )


def holds(version: str, operator: str, bound: str) -> bool:
    """Compare two release numbers, part by part and padded: 2.10 is more than 2.9."""
    left, right = ([int(n) for n in re.findall(r"\d+", v)[:4]] for v in (version, bound))
    width = max(len(left), len(right))
    left, right = (parts + [0] * (width - len(parts)) for parts in (left, right))
    return {
        "<": left < right,
        ">": left > right,
        "<=": left <= right,
        ">=": left >= right,
        "==": left == right,
    }[operator]


def main() -> int:
    """Print what was asked for, one requirement a line; 1 if anything is missing."""
    what, *extras = sys.argv[1:]
    with open(PYPROJECT, encoding="utf-8") as file:
        text = file.read()
    if what == "no-deps":
        lines = read_list(text, "no-deps")
    elif what == "list":
        lines = requirements(text, extras)
    else:
        lines = missing(requirements(text, extras) + read_list(text, "no-deps"))
    sys.stdout.write("".join(line + "\n" for line in lines))
    return int(what == "missing" and bool(lines))


if __name__ == "__main__":
    sys.exit(main())
