"""Data become inputs: of one length, split by document, the same every time."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data.prepared import everything, make
from eigenlens.data.inputs import Request, prepare
from eigenlens.data.split import FIT
from eigenlens.data.text import Piece, whole_documents
from eigenlens.models.load import load


def test_packed_windows_are_full_and_carry_the_special_tokens(minilm, marked, words, tmp_path):
    inputs = make(minilm, marked, tmp_path / "w", max_length=24, max_inputs=100)
    batch = everything(inputs)
    assert set(batch) == {"input_ids"}
    assert batch["input_ids"].shape == (100, 24)
    assert (batch["input_ids"][:, 0] == minilm.tokenizer.cls_token_id).all()
    assert (batch["input_ids"][:, -1] == minilm.tokenizer.sep_token_id).all()
    assert set(batch["input_ids"][:, 1:-1].unique().tolist()) <= set(words)


@pytest.mark.parametrize("held_out", [0.1, 0.2, 0.5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_document_is_both_fitted_and_held_out(minilm, marked, tmp_path, seed, held_out):
    inputs = make(
        minilm, marked, tmp_path / "w", max_length=24, max_inputs=200, seed=seed, held_out=held_out
    )
    buckets_of = {}
    for row, bucket in zip(
        everything(inputs)["input_ids"][:, 1:-1].tolist(), inputs.buckets.tolist()
    ):
        for token in row:
            buckets_of.setdefault(token, set()).add(bucket)
    assert len(buckets_of) > 50
    assert all(len(found) == 1 for found in buckets_of.values())
    assert (inputs.buckets != FIT).mean() == pytest.approx(held_out, abs=0.02)
    assert len(inputs.buckets) == 200


def test_facts_count_documents_and_inputs(minilm, marked, tmp_path):
    inputs = make(minilm, marked, tmp_path / "w", max_length=24, max_inputs=100, padding=True)
    held = inputs.buckets != FIT
    assert inputs.facts.inputs_fit == (~held).sum()
    assert inputs.facts.inputs_held_out == held.sum()
    assert inputs.facts.documents == 100
    assert inputs.facts.documents_held_out == held.sum()
    assert inputs.facts.name == "marked.jsonl"


def test_the_seed_decides_inputs_and_split(minilm, tmp_path):
    def of(seed, name):
        inputs = make(
            minilm, "python-docs", tmp_path / name, max_length=16, max_inputs=60, seed=seed
        )
        return everything(inputs)["input_ids"], inputs.buckets, inputs.facts.fingerprint

    first, again, other = of(3, "a"), of(3, "b"), of(4, "c")
    assert torch.equal(first[0], again[0])
    assert (first[1] == again[1]).all()
    assert first[2] == again[2] != other[2]
    assert not torch.equal(first[0], other[0])
    held = [
        set(map(tuple, ids[torch.from_numpy(b != FIT)].tolist())) for ids, b, _ in (first, other)
    ]
    assert held[0] != held[1]


def test_a_resumed_study_reads_the_same_inputs_without_the_data(minilm, marked, tmp_path):
    inputs = make(minilm, marked, tmp_path / "w", max_length=24, max_inputs=50)
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "w").iterdir()}
    again = prepare(
        minilm, Request(("gone.txt",), max_length=24, max_inputs=50), tmp_path / "w", resume=True
    )
    assert torch.equal(everything(again)["input_ids"], everything(inputs)["input_ids"])
    assert (again.buckets == inputs.buckets).all()
    assert before == {p.name: p.stat().st_mtime_ns for p in (tmp_path / "w").iterdir()}


def test_batches_of_a_bucket_give_each_of_its_inputs_once(minilm, marked, tmp_path):
    inputs = make(minilm, marked, tmp_path / "w", max_length=24, max_inputs=50)
    whole = everything(inputs)["input_ids"]
    for bucket in inputs.groups:
        parts = list(inputs.batches(bucket, 7))
        assert [n for n, _ in parts] == [len(b["input_ids"]) for _, b in parts]
        found = torch.cat([b["input_ids"] for _, b in parts])
        assert torch.equal(found, whole[torch.from_numpy(inputs.buckets == bucket)])
        tail = [b["input_ids"] for _, b in inputs.batches(bucket, 7, start=1, stop=10)]
        assert torch.equal(torch.cat([*tail, found[:0]]), found[1:10])
    assert sum(inputs.number(bucket) for bucket in inputs.groups) == 50


@pytest.mark.parametrize("side", ["right", "left"])
def test_padded_inputs_are_what_the_tokenizer_makes(minilm, marked, tmp_path, side):
    tokenizer = copy.deepcopy(minilm.tokenizer)
    tokenizer.padding_side = side
    inputs = make(
        replace(minilm, tokenizer=tokenizer),
        marked,
        tmp_path / "w",
        max_length=40,
        max_inputs=60,
        padding=True,
    )
    texts = [json.loads(line)["text"] for line in Path(marked).read_text().splitlines()]
    expected = tokenizer(
        texts, padding="max_length", truncation=True, max_length=40, return_tensors="pt"
    )
    batch = everything(inputs)
    assert torch.equal(batch["input_ids"], expected["input_ids"][inputs.documents])
    assert torch.equal(batch["attention_mask"], expected["attention_mask"][inputs.documents])
    assert 0 < batch["attention_mask"].float().mean() < 1
    assert (batch["attention_mask"][:, 0] == 0).any() == (side == "left")


def test_rows_of_token_ids_are_inputs_as_they_are(minilm, tmp_path):
    ids = np.random.default_rng(0).integers(0, 30_000, (40, 12)).astype(np.uint16)
    np.save(tmp_path / "ids.npy", ids)
    inputs = make(minilm, tmp_path / "ids.npy", tmp_path / "w", max_length=12, max_inputs=40)
    np.testing.assert_array_equal(everything(inputs)["input_ids"], ids[inputs.documents])
    assert sorted(inputs.documents.tolist()) == list(range(40))


def test_a_flat_array_of_token_ids_is_cut_and_split_by_run(minilm, tmp_path):
    np.save(tmp_path / "ids.npy", np.arange(12 * 100))
    inputs = make(minilm, tmp_path / "ids.npy", tmp_path / "w", max_length=12, max_inputs=100)
    ids = everything(inputs)["input_ids"]
    assert torch.equal(ids, ids[:, :1] + torch.arange(12))
    run = (ids[:, 0] // (8 * 12)).numpy()
    fit, held = set(run[inputs.buckets == FIT]), set(run[inputs.buckets != FIT])
    assert fit
    assert held
    assert not fit & held


@pytest.mark.download
@pytest.mark.parametrize("pad", [False, True])
def test_an_encoder_decoder_reads_on_in_its_decoder(tmp_path, pad):
    """Encoder and decoder get a whole length each: the text goes on behind the decoder's start
    token.
    """
    model = load("flan-t5-small")
    inputs = make(model, "python-docs", tmp_path / "w", max_length=20, max_inputs=30, padding=pad)
    batch = everything(inputs)
    assert batch["input_ids"].shape == batch["decoder_input_ids"].shape == (30, 20)
    assert (batch["input_ids"][:, -1] == model.tokenizer.eos_token_id).all()
    assert (batch["decoder_input_ids"][:, 0] == model.module.config.decoder_start_token_id).all()
    masks = {"attention_mask", "decoder_attention_mask"} if pad else set()
    assert set(batch) == {"input_ids", "decoder_input_ids"} | masks
    if not pad:
        stored = np.load(tmp_path / "w" / "ids.npy")
        joined = torch.cat([batch["input_ids"][:, :-1], batch["decoder_input_ids"][:, 1:]], 1)
        np.testing.assert_array_equal(joined, stored)


def test_apart_every_input_is_the_beginning_of_a_document_of_its_own(minilm, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    texts = [f"{i} " + "word " * (4 + 3 * i) for i in range(24)]
    for i, text in enumerate(texts):
        (folder / f"{i:02}.txt").write_text(text)
    inputs = make(minilm, folder, tmp_path / "w", max_length=24, max_inputs=100, joined=False)
    ids = minilm.tokenizer(texts, truncation=True, max_length=24)["input_ids"]
    long = sorted(row for row in ids if len(row) == 24)
    assert 5 < len(long) < 24  # shorter documents give none
    assert sorted(everything(inputs)["input_ids"].tolist()) == long
    assert len(set(inputs.documents.tolist())) == len(long)


def test_a_document_in_several_pieces_is_put_together():
    pieces = [Piece(0, "ab"), Piece(0, "cd"), Piece(1, "e"), Piece(2, "é"), Piece(3, "xyz" * 50)]
    whole = list(whole_documents(iter(pieces), 2))
    assert [(piece.document, piece.text) for piece in whole] == [
        (0, "abcd"),
        (2, "é"),  # two bytes may be two tokens
        (3, "xyz" * 50),
    ]


def test_a_request_for_joined_documents_is_stored_as_before():
    asked = Request(("text",), 24)
    assert "joined" not in asked.record() and Request.from_record(asked.record()) == asked
    apart = replace(asked, joined=False)
    assert Request.from_record(apart.record()) == apart
