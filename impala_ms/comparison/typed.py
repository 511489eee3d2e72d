"""Dataclasses from values that JSON gave, perhaps edited by a user.

Input: a dict. Output: the dataclass, or an error that names the field whose value is of another
type.
"""

from __future__ import annotations

from typing import Any, TypeVar, get_args, get_origin, get_type_hints

Made = TypeVar("Made")


def made(type_: type[Made], values: dict[str, Any]) -> Made:
    """The dataclass.

    Raises:
        TypeError: If a field is missing or unknown.
        ValueError: If a value is not of the type that its field has.
    """
    one = type_(**values)
    for name, kind in get_type_hints(type_).items():
        if not fits(getattr(one, name), kind):
            raise ValueError(f"{name} is {getattr(one, name)!r}")
    return one


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of an annotated type."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is list:
        return isinstance(value, list) and all(fits(one, inside[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(one, inside[1]) for one in value.values())
    if inside:  # such as float | None
        return any(fits(value, one) for one in inside)
    if kind in (int, float):
        return type(value) in (int, kind)  # true is not a number
    return kind is Any or isinstance(value, kind)
