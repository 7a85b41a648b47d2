"""The model that is diagnosed: its attention modules by site, and their weights by head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from torch import nn

from ..anatomy import Block, read_head_weights, read_stacks
from ..anatomy.blocks import Attend, Stack
from ..anatomy.head_weights import HeadWeights
from ..captures import Site, SiteInfo
from ..errors import EigenlensError
from ..models.load import Model


@dataclass(eq=False)
class StudiedModel:
    """A loaded model and its attention sites."""

    model: Model
    sites: Mapping[Site, SiteInfo]

    @property
    def module(self) -> nn.Module:
        """The part of the model that has the attention."""
        return self.model.backbone

    @cached_property
    def vocabulary(self) -> int | None:
        """How many token ids there are; None if the model does not read tokens."""
        text = self.model.kind in {"encoder", "decoder", "encoder-decoder"}
        return getattr(self.model.config, "vocab_size", None) if text else None

    @cached_property
    def stacks(self) -> tuple[Stack, ...]:
        """The anatomy of the model; raises an `EigenlensError` if its family is not known."""
        return read_stacks(self.module)

    @property
    def blocks(self) -> list[Block]:
        """All blocks of the model, stack by stack."""
        return [block for stack in self.stacks for block in stack.blocks]

    @cached_property
    def _outputs(self) -> dict[int, nn.Module | None]:
        """The output projection of each attention, by the identity of its module."""
        ways = [
            branch.linear
            for block in self.blocks
            for stage in block.stages
            for branch in stage.branches
        ]
        return {id(way.module): way.output for way in ways if isinstance(way, Attend)}

    def weights(self, site: Site) -> HeadWeights:
        """Return the projections of the site's attention by head.

        Raises an `EigenlensError` if they cannot be read.
        """
        entry = self.sites[site]
        module = self.module.get_submodule(entry.name)
        if id(module) not in self._outputs:
            raise EigenlensError(
                f"the output projection of the attention {entry.name} is not known"
            )
        return read_head_weights(module, entry.heads, entry.kv_heads, self._outputs[id(module)])

    def block_sites(self) -> dict[Site, Block]:
        """The block of every site of self-attention, if it is known."""
        found = {}
        for site, entry in self.sites.items():
            if entry.kind == "self":
                for block in self.blocks:
                    if entry.name.startswith(f"{block.path}."):
                        found[site] = block
        return found
