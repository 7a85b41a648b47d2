"""Models of the user's own in the place of the catalogue's: `eigenlens reproduce --model NAME`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..display import numbered
from ..errors import EigenlensError
from ..models.borrowed_names import named, short_names
from ..models.facts import Kind, ModelFacts
from ..models.load import load

if TYPE_CHECKING:
    from .paper import Paper

S = TypeVar("S")


@dataclass(frozen=True)
class OwnModels:
    """Models by the short names that tables call them by, in the order in which they were given."""

    facts: Mapping[str, ModelFacts]
    places: Mapping[str, str]

    @classmethod
    def of(cls, models: Sequence[str | Path]) -> OwnModels:
        """Load each model once, so that one that cannot be loaded is refused before any work."""
        given = [str(Path(one).resolve()) if Path(one).is_dir() else str(one) for one in models]
        places = short_names(list(dict.fromkeys(given)))
        with named(places):
            return cls({name: load(name, device=None).facts for name in places}, places)

    def fitting(self, paper: Paper) -> list[str]:
        """The models that a paper can measure; an error says why there is none."""
        if not paper.models:
            from . import PAPERS

            takers = ", ".join(name for name, one in PAPERS.items() if one.models)
            raise EigenlensError(
                f"the paper {paper.name} measures no models by name; those that do are {takers}"
            )
        found = [
            name for name, facts in self.facts.items() if _kind(facts) in (paper.kinds or KINDS)
        ]
        if not found:
            raise EigenlensError(f"the paper {paper.name} {_about(paper)}; {self._kinds()}")
        return found

    def put_into(self, scale: S, paper: Paper) -> tuple[S, tuple[str, ...]]:
        """The scale with these models in every field that names models, and notes about it."""
        names = self.fitting(paper)
        single = [
            field.name
            for field in fields(scale)  # type: ignore[arg-type]
            if field.name in paper.models and isinstance(getattr(scale, field.name), str)
        ]
        if single and len(names) > 1:
            raise EigenlensError(
                f"the paper {paper.name} measures one model, and {len(names)} were given:"
                f" {', '.join(names)}"
            )
        changed: dict[str, Any] = {
            name: names[0] if name in single else tuple(names) for name in paper.models
        }
        notes = [
            f"{', '.join(names)}: given in the place of the catalogue's models",
            *(
                f"{name} was left out: it is {_article(_kind(facts))}, and the paper"
                f" {paper.name} {_about(paper)}"
                for name, facts in self.facts.items()
                if name not in names
            ),
        ]
        return replace(scale, **changed), tuple(notes)  # type: ignore[type-var]

    def record(self) -> dict[str, str | None]:
        """What a run was begun with: other weights under the same name are another run."""
        return {name: facts.fingerprint for name, facts in self.facts.items()}

    def _kinds(self) -> str:
        each = ", ".join(
            f"{name} is {_article(_kind(facts))}" for name, facts in self.facts.items()
        )
        return f"of {numbered(len(self.facts), 'model')} {each}" if len(self.facts) > 1 else each


KINDS: tuple[Kind, ...] = ("encoder", "decoder", "encoder-decoder", "vision", "audio")
_PLURAL = {"vision": "vision models", "audio": "audio models"}


def _kind(facts: ModelFacts) -> Kind:
    return facts.kind or "module"


def _article(kind: Kind) -> str:
    name = f"{kind} model" if kind in _PLURAL else kind
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _about(paper: Paper) -> str:
    kinds = [_PLURAL.get(kind, f"{kind}s") for kind in paper.kinds or KINDS]
    most = ", ".join(kinds[:-1])
    return f"measures {f'{most} and ' if most else ''}{kinds[-1]}"
