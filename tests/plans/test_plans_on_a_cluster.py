"""An evaluation on a cluster.

The numbers of the local engine to the last bit, and what is said where shards fail.
"""

import json
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import eigenlens as el
from eigenlens.captures import Site
from eigenlens.plans import comparison as passes
from eigenlens.plans import held_out
from eigenlens.plans.evaluation import ATTENTION, FIRST_TOKEN, MEMORY, PER_SECOND, SECONDS
from eigenlens.plans.tasks import Classes, Embeddings, Perplexity
from tiny import small_llama, some_text


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("evaluate-engine")


@pytest.fixture(scope="module")
def world(planned):
    """A random BERT, a text, and a plan."""
    return planned.bert, planned.text, planned.plan


COSTS = {ATTENTION, FIRST_TOKEN, MEMORY, PER_SECOND, SECONDS}


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    """Four inputs of 24 tokens a shard."""
    monkeypatch.setattr(held_out, "TOKENS", 96)


def both(cluster, *args, **asked):
    """The same on a cluster and in this process, without seconds and memory.

    They are there unless the plan is simulated.
    """
    records = []
    for engine in (cluster, el.Local()):
        record = el.evaluate(*args, **asked, engine=engine).record()
        costs = [row for row in record["summary"] if row["measure"] in COSTS]
        assert all(row["plain"] >= 0 for row in costs)
        assert (not costs) == record["plan"]["simulated"]
        records.append(
            {
                "facts": {
                    key: record[key]
                    for key in ("model", "data", "length", "inputs", "notes", "plan")
                },
                "summary": [row for row in record["summary"] if row not in costs],
                "heads": record["heads"],
            }
        )
    return records


def test_a_plan_on_a_cluster_gives_the_numbers_of_this_process_to_the_last_bit(
    world, cluster, place
):
    bert, _, plan = world
    other = some_text(place / "other.txt", documents=9)
    there, here = both(cluster, bert, other, plan=plan, max_inputs=40)
    assert there == here and here["facts"]["inputs"] == 40


def test_so_does_a_mechanism(world, llama, cluster):
    there, here = both(
        cluster,
        llama,
        world[1],
        attention="window",
        settings={"window": 5},
        max_inputs=16,
        max_length=24,
    )
    assert there == here
    assert {row["measure"] for row in here["summary"]} >= {
        "perplexity",
        "total variation of the patterns",
    }


def test_and_a_plan_of_blocks(world, llama, cluster, place):
    study = el.study(
        llama, world[1], place / "llama-study", max_length=32, max_inputs=12, only=["moments"]
    )
    blocks = el.plan(study, budget=0.6, blocks=True, max_length=640)
    there, here = both(cluster, llama, plan=blocks, max_inputs=2)
    assert there == here and 0 < here["heads"][0]["output_error"] < 1


def test_shards_make_no_difference_beyond_rounding(world, monkeypatch):
    bert, text, _ = world
    few = el.evaluate(
        bert, text, attention="window", settings={"window": 5}, max_inputs=40, max_length=24
    )
    monkeypatch.setattr(held_out, "TOKENS", 10_000)
    once = el.evaluate(
        bert, text, attention="window", settings={"window": 5}, max_inputs=40, max_length=24
    )
    for row, other in zip(few.summary, once.summary, strict=True):
        assert row["measure"] == other["measure"]
        if row["measure"] in COSTS:
            continue
        np.testing.assert_allclose(row["planned"], other["planned"], rtol=1e-4)


def some_outputs(task, seed, number):
    random = torch.Generator().manual_seed(seed)
    shape = (number, 6, 8)
    plain, other = (torch.randn(shape, generator=random) for _ in range(2))
    batch = {"input_ids": torch.randint(8, shape[:2], generator=random)}
    if not isinstance(task, Embeddings):
        plain, other = SimpleNamespace(logits=plain), SimpleNamespace(logits=other)
    return task.observe(batch, plain), task.observe(batch, other)


@pytest.mark.parametrize("kind", [Classes, Embeddings, Perplexity])
def test_tasks_that_saw_parts_know_together_what_one_that_saw_all_knows(kind):
    parts = [some_outputs(kind(), seed, number) for seed, number in enumerate((3, 1, 4))]
    whole, first = kind(), kind()
    for part in parts:
        whole.add(*part)
    first.add(*parts[0])
    for part in parts[1:]:
        more = kind()
        more.add(*part)
        kept = json.dumps(more.result())
        first.merge(more)
        assert json.dumps(more.result()) == kept  # the other one is left as it was
    for row, other in zip(first.result(), whole.result(), strict=True):
        assert row["measure"] == other["measure"]
        assert row["planned"] == pytest.approx(other["planned"], rel=1e-6)
        assert row["plain"] == pytest.approx(other["plain"], rel=1e-6)
    assert first.rises == pytest.approx(whole.rises)


def test_a_merge_leaves_both_states_as_they_were():
    """On a cluster a state is merged again when a worker is lost."""
    states = []
    for seed in range(2):
        task = Embeddings()
        task.add(*some_outputs(task, seed, 2))
        states.append(passes.Passed(task, (1.0, 2.0), (3, 4), 2, Counter(planned=2)))
    job = passes.TimedPass(None, 1, None)
    once, again = (job.merge(*states) for _ in range(2))
    assert once.task.result() == again.task.result() and once.seconds == again.seconds == (2.0, 4.0)
    assert (once.memory, once.inputs, once.calls) == ((3, 4), 4, Counter(planned=4))
    assert [len(state.task.found[0]) for state in states] == [1, 1]


def test_a_module_in_hand_is_refused_before_a_cluster_is_started(monkeypatch):
    engine = el.Dask(workers=2)
    monkeypatch.setattr(el.Dask, "running", lambda _: pytest.fail("a cluster was started"))
    with pytest.raises(el.EigenlensError, match="LlamaForCausalLM was never saved"):
        el.evaluate(
            small_llama(), np.full((6, 8), 7), attention="window", max_length=8, engine=engine
        )


def test_what_the_work_itself_refuses_is_said_of_its_shard(world, cluster):
    bert, text, plan = world
    for engine in (cluster, el.Local()):
        with pytest.raises(
            el.EigenlensError,
            match=r"^shard \d+ \(.*\) failed: the plan has nothing for encoder L0",
        ):
            moved = el.Plan(
                plan.stored, plan.choices, {Site("decoder", 0): plan.parts[Site("encoder", 0)]}
            )
            el.evaluate(bert, text, plan=moved, engine=engine)


def test_a_shard_that_fails_ends_the_evaluation_or_is_missing(world, monkeypatch):
    bert, text, _ = world
    run = passes.CallComparison.run

    def fails(self, content, tick):
        if content.first == 0:
            raise ValueError("no")
        return run(self, content, tick)

    monkeypatch.setattr(passes.CallComparison, "run", fails)
    asked = {"attention": "window", "max_inputs": 24, "max_length": 24}
    with pytest.raises(
        el.EigenlensError,
        match=r"^shard 0 \(\d inputs of the documents? .*\) failed: ValueError: no$",
    ):
        el.evaluate(bert, text, **asked, engine=el.Local())
    found = el.evaluate(bert, text, **asked, engine=el.Local("partial"))
    (note,) = found.notes
    assert note.startswith("what was found of patterns is partial: 1 shard with ")
    assert 24 - 8 <= found.facts.inputs < 24


def test_the_command_joins_a_cluster(world, planned, cluster, run):
    bert, text, _ = world
    asked = (
        "evaluate",
        bert,
        text,
        "--plan",
        planned.folder / "plan",
        "--max-inputs",
        12,
        "--json",
    )
    there = run(*asked, "--engine", "dask", "--scheduler", cluster._client.scheduler.address)
    here = run(*asked)
    assert there.code == here.code == 0, there.err
    assert json.loads(there.out)["heads"] == json.loads(here.out)["heads"]
    ended = run(*asked, "--engine", "dask")
    assert ended.code == 2 and "needs --workers N" in ended.err
