"""The packages that pyproject.toml asks for: lists them, finds what is missing, runs pip.

Usage: ``requirements.py list | no-deps | missing [EXTRA …]``, or ``requirements.py pip ARGUMENT …``

start_standalone.sh runs it by its path, in an environment that may hold nothing at all. So it
needs only the standard library, and nothing of this package. ``missing`` runs at every start: it
reads pyproject.toml by hand (tomllib is new in 3.11) and takes versions from the names of the
``*.dist-info`` folders, in a few milliseconds instead of a hundred.
"""

import os
import re
import sys

# Installed with --no-deps. mindspore-rl asks for pyyaml==6.0, which has no wheel for CPython 3.12,
# and for gym, which is not maintained any more; compat.py puts gymnasium in its place.
NO_DEPS = ["mindspore-rl==0.7.0"]

# Settings of pip that the user may make, in variables or in its configuration: where packages come
# from. Others may change what is installed, or where: target, prefix, root, user, dry-run, …
PIP_SETTINGS = {
    *("index-url", "extra-index-url", "no-index", "find-links", "prefer-binary", "only-binary"),
    *("cert", "client-cert", "trusted-host", "proxy", "timeout", "default-timeout", "retries"),
    *("cache-dir", "no-cache-dir", "keyring-provider", "use-feature", "use-deprecated"),
    *("disable-pip-version-check", "no-input"),
}

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
    return {
        name: os.path.basename(path)[: -len(".dist-info")].partition("-")[2]
        for name, path in distributions().items()
    }


def distributions() -> dict[str, str]:
    """The ``*.dist-info`` folder by normalised name, the first on this interpreter's path."""
    found: dict[str, str] = {}
    for folder in sys.path:
        if os.path.isdir(folder):
            for entry in os.listdir(folder):
                if entry.endswith(".dist-info"):
                    found.setdefault(
                        normalise(entry.partition("-")[0]), os.path.join(folder, entry)
                    )
    return found


def is_hollow(dist_info: str) -> bool:
    """Whether a folder or module of a distribution is not there, which pip does not notice."""
    site_packages = os.path.dirname(dist_info)
    try:
        with open(os.path.join(dist_info, "RECORD"), encoding="utf-8", errors="replace") as file:
            lines = file.readlines(100_000)  # MindSpore's has 2 MB
    except OSError:  # not written by all package managers
        return False
    tops = {re.split("[/,]", line)[0] for line in lines} - {"..", "__pycache__"}
    return not all(os.path.exists(os.path.join(site_packages, name)) for name in tops)


def normalise(name: str) -> str:
    """A distribution's name in one spelling: ``types-PyYAML`` is ``types_pyyaml``."""
    return re.sub(r"[-_.]+", "_", name).lower()


def missing(wanted: list[str]) -> list[str]:
    """The requirements that this environment does not meet."""
    folders, versions = distributions(), installed()
    return [
        line
        for line in wanted
        if not is_met(line, versions) or is_hollow(folders[normalise(split(line)[0])])
    ]


def split(requirement: str) -> tuple[str, str]:
    """``("name", ">=1.2,<2")``."""
    name = re.split("[<>= ]", requirement)[0]
    return name, requirement.removeprefix(name).strip()


def is_met(requirement: str, versions: dict[str, str]) -> bool:
    """Whether ``name>=1.2,<2`` holds; only release numbers are compared."""
    name, bounds = split(requirement)
    version = versions.get(normalise(name))
    return version is not None and all(
        holds(version, operator, number)
        for operator, number in re.findall(r"(<=|>=|==|<|>)\s*([\d.]+)", bounds)
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


def pip(arguments: list[str]) -> None:
    """Become this interpreter's pip, with no more of the user's settings than ``PIP_SETTINGS``."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PIP_", "PYTHON")) or setting(name[4:]) in PIP_SETTINGS
    }
    environment = configured() | environment | {"PIP_CONFIG_FILE": os.devnull}
    os.execve(sys.executable, [sys.executable, "-I", "-m", "pip", *arguments], environment)


def setting(name: str) -> str:
    """A setting of pip as its options are spelt."""
    return name.lower().replace("_", "-")


def configured() -> dict[str, str]:
    """The ``PIP_SETTINGS`` in pip's configuration files, as environment variables.

    ``pip config list`` does not do: it takes ``user = true`` in them for an option of its own.
    """
    import configparser

    parser = configparser.RawConfigParser()
    try:
        parser.read(configuration_files())
    except (configparser.Error, UnicodeError) as error:
        sys.exit(f"pip's configuration cannot be read: {error}")
    found = {}
    for section in ("global", "install"):  # the latter wins
        for name, value in parser.items(section) if parser.has_section(section) else ():
            if setting(name) in PIP_SETTINGS:
                found["PIP_" + name.upper().replace("-", "_")] = value
    return found


def configuration_files() -> list[str]:
    """The files that pip reads, the least important first, as its documentation says."""
    home, own = os.path.expanduser("~"), os.environ.get("PIP_CONFIG_FILE", "")
    if own == os.devnull:
        return []
    shared = os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    folders = [os.path.join(folder, "pip") for folder in shared.split(os.pathsep)] + ["/etc"]
    if not os.path.exists(own):
        config_home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
        folders += [os.path.join(home, ".pip"), os.path.join(config_home, "pip")]
    return [os.path.join(folder, "pip.conf") for folder in (*folders, sys.prefix)] + [own]


def main() -> int:
    """Print what was asked for, one requirement a line; 1 if anything is missing."""
    what, *extras = sys.argv[1:]
    if what == "pip":
        pip(extras)
    with open(PYPROJECT, encoding="utf-8") as file:
        text = file.read()
    if what == "no-deps":
        lines = NO_DEPS
    elif what == "list":
        lines = requirements(text, extras)
    else:
        lines = missing(requirements(text, extras) + NO_DEPS)
    sys.stdout.write("".join(line + "\n" for line in lines))
    return int(what == "missing" and bool(lines))


if __name__ == "__main__":
    sys.exit(main())
