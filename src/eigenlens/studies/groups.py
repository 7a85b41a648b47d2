"""What groups of held-out documents showed, and how a checkpoint keeps it."""

from __future__ import annotations

from ..spectra.bases import Energies, Key, Scope
from ..stats import State

Group = dict[str, dict[Key, Energies]]
"""What one group of held-out documents showed, by analysis."""


def pack_groups(groups: list[Group]) -> State:
    state: State = {}
    for index, group in enumerate(groups):
        for analysis, found in group.items():
            for (scope, centring), energies in found.items():
                layer = "" if scope.layer is None else scope.layer
                name = f"energies:{index}|{analysis}|{scope.level}|{scope.stack}|{layer}|{centring}"
                state[f"{name}|energy"], state[f"{name}|total"] = energies.energy, energies.total
    return state


def unpack_groups(state: State) -> list[Group]:
    """From a state whose names have lost `energies:`."""
    groups: dict[int, Group] = {}
    for name, energy in state.items():
        index, analysis, level, stack, layer, centring, what = name.split("|")
        if what == "energy":
            scope = Scope(level, stack, int(layer) if layer else None)  # type: ignore[arg-type]
            total = state[name.removesuffix("energy") + "total"]
            energies = groups.setdefault(int(index), {}).setdefault(analysis, {})
            energies[scope, centring] = Energies(energy, total)  # type: ignore[index]
    return [groups[index] for index in sorted(groups)]
