"""Check an id before an environment is made: whether it exists, and whether it is an Atari game.

Input: the id of the configuration. Output: its kind, or an error. The launcher asks before it
starts anything, so a user's own module is not imported here, and gymnasium only where it must be.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

from impala_ms.envs.errors import MakeError

ATARI, OTHER = "atari", "other"


def kind_of(id: str) -> str:
    """``ATARI`` for a game that comes with the preprocessing of ``envs.atari``, else ``OTHER``."""
    if not id.endswith(("-v5", "NoFrameskip-v4")) or _is_built_in(id):
        return OTHER
    from impala_ms.envs.atari import game_of

    return ATARI if game_of(id) is not None else OTHER


def check(id: str) -> None:
    """Refuse an id that no package has, or whose file is missing.

    An id of a user's own module is not refused: only an import would tell what it registers.

    Raises:
        MakeError: The message names the nearest ids.
    """
    module, colon, _ = id.rpartition(":")
    if module.endswith(".py") and not Path(module).is_file():
        raise MakeError(f"there is no file {Path(module).absolute()}, which {id!r} names")
    if colon or _is_built_in(id) or kind_of(id) == ATARI:
        return
    from impala_ms.envs.make import find_spec

    find_spec(id, pools_too=True)


def _is_built_in(id: str) -> bool:
    """Whether gymnasium registers the id. Its source is read: an import would take longer."""
    return f'id="{id}"' in _source_of_registrations()


@functools.cache
def _source_of_registrations() -> str:
    spec = importlib.util.find_spec("gymnasium")
    folders = (spec and spec.submodule_search_locations) or []
    for folder in folders:
        file = Path(folder, "envs", "__init__.py")
        if file.is_file():
            return file.read_text(encoding="utf-8", errors="replace")
    return ""
