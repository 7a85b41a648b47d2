"""Diagnostics of the weights alone: what they keep are constants of the model."""

from __future__ import annotations

from typing import Self

from torch import Tensor

from ..captures import Site
from ..captures.sites import field_of
from .diagnostic import Diagnostic, field_by_site


class Constants(Diagnostic):
    """A diagnostic that sees nothing but the weights; what is known of a site stays.

    Two machines may order eigenvalues in other ways, and choose other signs. So the first is kept,
    and nothing is mixed: what comes later of a site that is known is left out, all its fields
    alike.
    """

    sees = "weights"

    def known(self, site: Site) -> bool:
        """Whether there is anything of a site, as there is where a study goes on."""
        return any(field_of(name)[0] == site for name in self.peaks)

    def keep(self, site: Site, **fields: Tensor) -> None:
        """Keep the fields of a site, unless the site is known."""
        if not self.known(site):
            self.peaks |= {
                f"{site}/{field}": x.detach().double().cpu().contiguous()
                for field, x in fields.items()
            }

    def of(self, field: str) -> list[tuple[Site, Tensor]]:
        """A field of all sites, in their order."""
        return field_by_site(self.peaks, field)

    def merge(self, other: Self) -> None:
        sites: dict[Site, dict[str, Tensor]] = {}
        for name, x in other.peaks.items():
            site, field = field_of(name)
            sites.setdefault(site, {})[field] = x
        for site, fields in sites.items():
            self.keep(site, **fields)
