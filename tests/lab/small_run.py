"""A run small enough for tests, as content and as a file."""

import json

SMALL = {
    "task": {"name": "sort", "train": 200, "test": 50},
    "model": {
        "layers": 2,
        "width": 16,
        "heads": 2,
        "mechanism": [["softmax", 1], ["local", 1]],
        "gate": "G1-head",
    },
    "training": {
        "steps": 40,
        "batch": 16,
        "rate": 5e-3,
        "warmup": 5,
        "measure": 20,
        "seeds": [0, 3],
    },
}
SMALL["model"]["mechanism_settings"] = {"local": {"window": 3}}


def changed(section, **keys):
    return {**SMALL, section: {**SMALL[section], **keys}}


def toml(content):
    """Two levels, and tables of settings below them."""
    lines = []
    for section, keys in content.items():
        lines.append(f"[{section}]")
        lines += [
            f"{key} = {json.dumps(value)}"
            for key, value in keys.items()
            if not isinstance(value, dict)
        ]
        for name, settings in keys.get("mechanism_settings", {}).items():
            lines.append(f"[{section}.mechanism_settings.{name}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    return "\n".join(lines)
