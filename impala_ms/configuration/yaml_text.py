"""YAML as people write it: 1e-3 is a number, and a key that stands twice is a mistake.

Input: the text of a file or an option. Output: its value.
"""

from __future__ import annotations

import re
from typing import Any

from impala_ms.errors import ConfigError, describe


def parse_yaml(text: str) -> Any:
    """The value of a YAML text, in which 1e-3 is a number (to YAML 1.1 it is a text)."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no type information
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value]
            if twice := {str(key) for key in keys if keys.count(key) > 1}:
                raise ValueError(f"{', '.join(sorted(twice))} stands there twice")
            return super().construct_mapping(node, deep)

    number = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    try:
        return yaml.load(text, Loader=Loader)
    except Exception as error:  # of any kind, such as a date in month 13
        raise ConfigError(f"is not YAML: {describe(error)}") from error
