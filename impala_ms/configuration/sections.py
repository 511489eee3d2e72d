"""The dicts of a configuration: their names, and the path of each value in them.

``learner.lr`` is ``lr`` of ``learner_params`` (a section), ``actor.number`` is ``number`` of
``actor`` in ``algorithm_config`` (a part).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from impala_ms.configuration.values import Setting

SECTIONS = (
    "collect_env_params",
    "eval_env_params",
    "network_params",
    "policy_params",
    "learner_params",
    "trainer_params",
)


class Section(dict[str, Any]):
    """The values of a section, begun with the defaults, and what is known of each key.

    Attributes:
        settings: ``{key: Setting}``.
    """

    def __init__(self, settings: Mapping[str, Setting]) -> None:
        """Begin with the defaults."""
        super().__init__({key: copy.deepcopy(one.default) for key, one in settings.items()})
        self.settings = dict(settings)


def dicts(names: Mapping[str, Any]) -> dict[str, Any]:
    """The sections that a config module holds, with those whose name is misspelt.

    Every public dict may be a section. Names in capitals are groups of settings, and ``columns``
    says what an algorithm measures.
    """
    return {
        name: value
        for name, value in names.items()
        if (isinstance(value, Mapping) or name in SECTIONS)
        and name != "columns"
        and not name.isupper()
        and not name.startswith("_")
    }


def section_of(part: Mapping[str, Any], sections: Mapping[str, Any]) -> str | None:
    """The name of the section that is the part's params."""
    params = part.get("params")
    return next((s for s in SECTIONS if params is not None and sections.get(s) is params), None)


def flatten(
    sections: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, Any]]:
    """Yield path and value of everything in sections and parts."""
    for section in SECTIONS:
        for key, value in sections[section].items():
            yield f"{section.removesuffix('_params')}.{key}", value
    for name, part in parts.items():
        for key, value in part.items():
            if key != "params":
                yield f"{name}.{key}", value


def nest(tree: Any, names: Sequence[str], value: Any) -> Any:
    """A copy of nested dicts with the value at the end of the names."""
    if not names:
        return value
    tree = dict(tree) if isinstance(tree, Mapping) else {}
    tree[names[0]] = nest(tree.get(names[0]), names[1:], value)
    return tree
