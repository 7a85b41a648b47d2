"""Diagnostics of the weights alone: what they keep are constants of the model."""

from __future__ import annotations

from typing import Self

from torch import Tensor

from ..captures import Site
from .diagnostic import Diagnostic


class Constants(Diagnostic):
    """A diagnostic that sees nothing but the weights; what is known of a site stays.

    Two machines may order eigenvalues in other ways, and choose other signs. So the first is kept,
    and nothing is mixed: what comes later of a site that is known is left out, all its fields
    alike.
    """

    sees = "weights"

    def known(self, site: str) -> bool:
        """Whether there is anything of a site, as there is where a study goes on."""
        return any(name.rpartition("/")[0] == site for name in self.peaks)

    def keep(self, site: str, **fields: Tensor) -> None:
        """Keep the fields of a site, unless the site is known."""
        if not self.known(site):
            self.peaks |= {
                f"{site}/{field}": x.detach().double().cpu().contiguous()
                for field, x in fields.items()
            }

    def of(self, field: str) -> list[tuple[Site, Tensor]]:
        """A field of all sites, in their order."""
        named = ((name.rpartition("/"), x) for name, x in self.peaks.items())
        return sorted(
            ((Site.parse(site), x) for (site, _, end), x in named if end == field),
            key=lambda pair: pair[0],
        )

    def merge(self, other: Self) -> None:
        sites: dict[str, dict[str, Tensor]] = {}
        for name, x in other.peaks.items():
            site, _, field = name.rpartition("/")
            sites.setdefault(site, {})[field] = x
        for site, fields in sites.items():
            self.keep(site, **fields)
