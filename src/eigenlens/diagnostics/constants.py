"""Diagnostics that read only the weights: what they keep are constants of the model."""

from __future__ import annotations

from typing import Self

from torch import Tensor

from ..captures import Site
from ..captures.sites import field_of
from .diagnostic import Diagnostic, field_by_site


class Constants(Diagnostic):
    """A diagnostic that reads only the weights and keeps the first values of each site.

    Two machines may order eigenvalues differently and choose other signs. So the values that came
    first are kept, all fields of a site together, and later values of that site are dropped.
    """

    sees = "weights"

    def known(self, site: Site) -> bool:
        """Return whether values of a site are kept already, as when a study is resumed."""
        return any(field_of(name)[0] == site for name in self.peaks)

    def keep(self, site: Site, **fields: Tensor) -> None:
        """Keep the fields of a site, unless the site has values already."""
        if not self.known(site):
            self.peaks |= {
                f"{site}/{field}": x.detach().double().cpu().contiguous()
                for field, x in fields.items()
            }

    def of(self, field: str) -> list[tuple[Site, Tensor]]:
        """Return one field of all sites, in their order."""
        return field_by_site(self.peaks, field)

    def merge(self, other: Self) -> None:
        sites: dict[Site, dict[str, Tensor]] = {}
        for name, x in other.peaks.items():
            site, field = field_of(name)
            sites.setdefault(site, {})[field] = x
        for site, fields in sites.items():
            self.keep(site, **fields)
