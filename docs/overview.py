"""The picture at the top of the README, and the figures below it, from the demo's results.

`eigenlens demo`, then `python docs/overview.py demo`. A test compares the figures with the README.
"""

import json
import statistics
import sys
from pathlib import Path

import altair as alt

import eigenlens as el
from eigenlens.run.charts import save_charts

PICTURES = Path(__file__).parent / "pictures"
FONT = "DejaVu Sans"
SMALLEST = 1e-7
"""The lower end of the axis: residuals below rounding are drawn there."""


def dimensions(study: el.Study) -> alt.LayerChart:
    """Layers × heads, each with the dimensions that 90 % of its held-out variance needs."""
    heads = study.spectra.select(analysis="rows", level="head", centring="centred")
    rows = [{"layer": f"L{s.layer}", "head": s.head, "needs": s.dimension(0.9)} for s in heads]
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("head:O", title="head", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("layer:O", title=None),
    )
    colour = alt.Color("needs:Q", scale=alt.Scale(scheme="yellowgreenblue"), legend=None)
    white = alt.condition("datum.needs > 64", alt.value("white"), alt.value("#222"))
    title = [
        "1  One basis for all inputs is large",
        f"dimensions for 90 % of the variance, of {study.length}; one input: {_single(study)}",
    ]
    return alt.layer(
        base.mark_rect(cornerRadius=3, stroke="white").encode(color=colour),
        base.mark_text(fontSize=10).encode(text="needs:Q", color=white),
    ).properties(width=330, height=210, title=_title(title))


def patterns(plan: el.Plan) -> alt.HConcatChart:
    """The pattern of one head, exact and as the plan has it."""
    shown = plan.examples
    head = len(shown.heads) // 2  # in the order of what they lose: the middle one
    label = shown.label(head).partition(",")[0]
    true, made = shown.patterns(0, head)[:2]
    panels = []
    work = f"with the plan, {100 * plan.work:.0f} % of the work"
    for name, pattern in (("exact", true), (work, made)):
        rows = [
            {"query": i, "key": j, "weight": float(weight) ** 0.5}
            for i, row in enumerate(pattern)
            for j, weight in enumerate(row)
        ]
        bare = alt.Axis(labels=False, ticks=False, domain=False)
        panels.append(
            alt.Chart(alt.Data(values=rows))
            .mark_rect(strokeWidth=0.4)
            .encode(
                x=alt.X("key:O", title=name, axis=bare),
                y=alt.Y("query:O", axis=None),
                color=alt.Color("weight:Q", scale=alt.Scale(scheme="magma"), legend=None),
                stroke=alt.Stroke("weight:Q", scale=alt.Scale(scheme="magma"), legend=None),
            )
            .properties(width=192, height=210)
        )
    title = ["2  Most of the work can be left out", f"attention pattern of head {label}"]
    return alt.hconcat(*panels, spacing=8).properties(title=_title(title))


def depth(run: el.Collapse) -> alt.LayerChart:
    """How far the tokens are from one vector, with all parts and with attention alone."""
    names = {"full": "whole model", "SAN+skip": "no MLPs", "SAN": "attention alone"}
    rows = [
        {"block": row["depth"], "residual": max(row[name] or 0, SMALLEST), "model": words}
        for row in run.rows()
        for name, words in names.items()
    ]
    title = ["3  Skips keep its tokens apart", "relative distance from one common vector"]
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("block:Q", title="block", axis=alt.Axis(format="d", tickCount=6)),
        y=alt.Y(
            "residual:Q",
            title=None,
            scale=alt.Scale(type="log", domain=[SMALLEST, 2]),
            axis=alt.Axis(format=".0e", values=[1, 1e-2, 1e-4, 1e-6]),
        ),
        color=alt.Color(
            "model:N",
            sort=list(names.values()),
            legend=alt.Legend(title=None, orient="bottom-left", symbolStrokeWidth=3),
            scale=alt.Scale(range=["#1b6ca8", "#7cc0b5", "#d1495b"]),
        ),
    )
    drawn = alt.layer(base.mark_line(strokeWidth=3), base.mark_point(filled=True, size=50))
    return drawn.properties(width=270, height=210, title=_title(title))


def figures(study: el.Study, evaluation: el.Evaluation, run: el.Collapse) -> dict[str, str]:
    """What the README says of these results, as it says it."""
    needs = [
        s.dimension(0.9)
        for s in study.spectra.select(analysis="rows", level="head", centring="centred")
    ]
    end = run.rows()[-1]
    return {
        "within": f"{_single(study)} components",
        "median": f"{statistics.median(needs):g} of {study.length} dimensions",
        "few": f"{sum(need <= 16 for need in needs)} of {len(needs)} heads need 16 or fewer",
        "work": f"{100 * evaluation.value('share of the multiply-adds for pairs'):.0f} % of the",
        "cosine": f"a cosine of {evaluation.value('cosine of the embeddings'):.3f}",
        "whole": f"the whole model keeps it at {end['full']:.2f}",
        "alone": "below 1e-6" if end["SAN"] < 1e-6 else f"at {end['SAN']:.1g}",
    }


def _single(study: el.Study) -> str:
    """Components for 90 % of one input's row-centred scores in the median head, of how many."""
    within = list(study.within.whole("centred"))
    return f"{statistics.median(one.dimension(0.9) for one in within):g} of {within[0].most}"


def _title(lines: list[str]) -> alt.Title:
    return alt.Title(
        lines[0], subtitle=lines[1], anchor="start", fontSize=15, subtitleFontSize=12, offset=8
    )


def main(folder: str) -> None:
    demo = Path(folder)
    study, run = el.Study.open(demo / "study"), el.Collapse.open(demo / "collapse")
    chart = (
        alt.hconcat(
            dimensions(study),
            patterns(el.Plan.open(demo / "plan")),
            depth(run),
            spacing=34,
        )
        .resolve_scale(color="independent", stroke="independent")
        .configure(font=FONT, background="white", padding=14)
        .configure_view(strokeWidth=0)
        .configure_axis(grid=False)
    )
    kept = figures(study, el.Evaluation.open(demo / "evaluation"), run)
    text = json.dumps(kept, indent=2, ensure_ascii=False)
    (PICTURES / "overview.json").write_text(f"{text}\n", encoding="utf-8")
    print(*save_charts({"overview": chart}, PICTURES, only_png=["overview"]))


if __name__ == "__main__":
    main(sys.argv[1])
