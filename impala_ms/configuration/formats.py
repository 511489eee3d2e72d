"""What ``config.json`` says, whichever version of this package has written it.

Input: its content. Output: the content as this version would have written it.
"""

from __future__ import annotations

from typing import Any

FORMAT = 3  # of config.json; 1 had no number


def in_this_format(data: dict[str, Any]) -> dict[str, Any]:
    """What ``config.json`` says, with the old meaning of keys that an older format lacks.

    Raises:
        ValueError: If it was written by a later version.
    """
    written = data.pop("format", 1)
    if written not in range(1, FORMAT + 1):
        raise ValueError(f"it has format {written!r}, and this version knows 1 to {FORMAT}")
    if written < 3:
        for part in data["algorithm_config"].values():
            if str(part.get("type")).startswith("impala_ms.algorithm."):  # where ours lay then
                part["type"] = None
        data["ranks"] = data["actors"] + 1
    if written == 1:
        data["collect_env_params"].setdefault("scale_actions", False)
        data["eval_env_params"].setdefault("scale_actions", False)
        for part in data["algorithm_config"].values():
            for key in ("networks", "number"):  # these said nothing, but for actor and learner
                if key == "networks" or str(part.get("type")).endswith(":make_vec"):
                    part.pop(key, None)
        section, of = data["eval_env_params"], data["collect_env_params"]
        data["following"] = [f"eval_env.{key}" for key in section if section[key] == of.get(key)]
    data["folders"] = tuple(data.get("folders", ()))
    data["following"] = tuple(data.get("following", ()))
    return data
