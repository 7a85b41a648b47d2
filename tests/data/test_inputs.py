"""Data become inputs: of one length, split by document, the same every time."""

import copy
import json
import math
import wave
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from eigenlens.data.inputs import Request, prepare
from eigenlens.data.split import FIT
from eigenlens.errors import EigenlensError
from eigenlens.models import catalogue
from eigenlens.models.load import load


@pytest.fixture(scope="session")
def minilm():
    return load("minilm")


@pytest.fixture(scope="session")
def words():
    """Words that are one token each, so that a token says which word it was."""
    tokenizer = AutoTokenizer.from_pretrained(catalogue.folder("minilm"))
    ids = [
        i
        for word, i in sorted(tokenizer.get_vocab().items())
        if word.isascii() and word.isalpha() and len(word) > 3
    ]
    return {i: tokenizer.convert_ids_to_tokens(i) for i in ids[:500]}


@pytest.fixture
def marked(tmp_path, words):
    """Documents of one word each, over and over: token ids tell which documents an input was made
    of.
    """
    sizes = np.random.default_rng(0).integers(5, 120, len(words))
    path = tmp_path / "marked.jsonl"
    path.write_text(
        "\n".join(json.dumps({"text": f"{w} " * int(n)}) for w, n in zip(words.values(), sizes))
    )
    return str(path)


def make(model, data, folder, **options):
    folder.mkdir(exist_ok=True)
    names = tuple(map(str, data)) if isinstance(data, list | tuple) else (str(data),)
    return prepare(model, Request(names, **options), folder)


def everything(inputs):
    """All inputs in their order, as one batch."""
    return inputs.make(np.arange(len(inputs.buckets)))


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


def broken_file(path, content):
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content, allow_pickle=True)
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.zeros((40, 12)), r"holds float64 of shape \(40, 12\); token ids are integers"),
        (np.zeros((4, 4, 12), int), "one or two dimensions"),
        (np.zeros((40, 13), int), "have 13 tokens, and inputs of 12"),
        (np.full((40, 12), 30_522), "30522, outside the vocabulary of 30522"),
        (np.array([[5, -7] * 6] * 40), "-7, and token ids are 0 or more"),
        (np.array([{"a": 1}, None], object), "no array of token ids"),
        (np.zeros((2, 12), int), "too short"),
        (np.zeros(0, int), "empty"),
        (b"", "no array of token ids"),
        (b"these are words", "no array of token ids"),
        (b"PK\x03\x04 an archive", "no array of token ids"),
    ],
    ids=[
        "floats",
        "3-D",
        "width",
        "too large",
        "negative",
        "pickle",
        "few",
        "none",
        "no bytes",
        "text",
        "zip",
    ],
)
def test_what_is_no_array_of_token_ids_is_refused(minilm, tmp_path, content, message):
    path = broken_file(tmp_path / "ids.npy", content)
    with pytest.raises(EigenlensError, match=message):
        make(minilm, path, tmp_path / "w", max_length=12, max_inputs=40)


def test_an_archive_of_arrays_is_no_array(minilm, tmp_path):
    np.savez(tmp_path / "a.npz", ids=np.zeros((40, 12), int))
    (tmp_path / "a.npz").rename(tmp_path / "ids.npy")
    with pytest.raises(EigenlensError, match="no array of token ids"):
        make(minilm, tmp_path / "ids.npy", tmp_path / "w", max_length=12, max_inputs=40)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", {}, "the text is empty"),
        (" \n\n ", {}, "the text is empty"),
        ("a few words only", {}, "too short: at length 128 it gives 0 inputs to fit"),
        ("words " * 9999, {"max_length": 513}, "513 is over the maximum of minilm, 512"),
        ("words " * 9999, {"max_length": 2}, "no room beside the 2 special tokens"),
        ("words " * 9999, {"max_length": 1}, "at least 2 tokens"),
        ("words " * 9999, {"max_inputs": 2}, "2 inputs are too few"),
        ("words " * 9999, {"held_out": 0.0}, "between 0 and 1, not 0"),
        ("words " * 9999, {"held_out": 1.0}, "between 0 and 1, not 1"),
        ("words " * 9999, {"held_out": math.nan}, "between 0 and 1, not nan"),
    ],
)
def test_what_gives_no_inputs_is_refused(minilm, tmp_path, content, options, message):
    path = tmp_path / "a.txt"
    path.write_text(content)
    with pytest.raises(EigenlensError, match=message):
        make(minilm, path, tmp_path / "w", **options)


def test_text_for_a_model_without_a_tokenizer_is_refused(minilm, marked, tmp_path):
    with pytest.raises(EigenlensError, match="no tokenizer"):
        make(replace(minilm, tokenizer=None), marked, tmp_path / "w")
    with pytest.raises(EigenlensError, match="cannot be mixed"):
        make(minilm, [marked, "ids.npy"], tmp_path / "w")


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


@pytest.fixture(scope="module")
def dinov2():
    return load("dinov2-small")


def test_crops_of_photographs_are_held_out_by_photograph(dinov2, tmp_path):
    """Two pictures: one is fitted, the other held out; crops of one differ, and are normalised as
    the processor says.
    """
    inputs = make(dinov2, "photos", tmp_path / "w", max_length=17, max_inputs=20)
    pixels = everything(inputs)["pixel_values"]
    patch = dinov2.module.config.patch_size
    assert pixels.shape == (20, 3, 4 * patch, 4 * patch)
    assert inputs.length == 17
    assert (inputs.buckets != FIT).sum() == 4
    assert len(set(inputs.documents[inputs.buckets == FIT])) == 1
    assert not set(inputs.documents[inputs.buckets == FIT]) & set(
        inputs.documents[inputs.buckets != FIT]
    )
    assert len({crop.numpy().tobytes() for crop in pixels}) == 20
    mean, spread = (
        torch.tensor(x)[:, None, None]
        for x in (dinov2.processor.image_mean, dinov2.processor.image_std)
    )
    colours = pixels * spread + mean
    assert colours.min() >= -1e-6
    assert colours.max() <= 1 + 1e-6
    assert colours.std() > 0.1


@pytest.mark.parametrize("number", [12, 30, 60])
def test_every_picture_of_a_folder_is_used(dinov2, tmp_path, number):
    from PIL import Image

    folder = tmp_path / "pictures"
    folder.mkdir()
    for i in range(number):
        Image.new("RGB", (40, 30), (4 * i, 0, 0)).save(folder / f"{i}.png")
    inputs = make(dinov2, folder, tmp_path / "w", max_length=17, max_inputs=100, held_out=0.2)
    assert len(inputs.buckets) == 100
    assert (inputs.buckets != FIT).sum() == 20
    assert len(set(inputs.documents)) == number
    red = everything(inputs)["pixel_values"][:, 0].mean((1, 2)).numpy().round(3)
    assert len(set(red)) == number
    assert not set(red[inputs.buckets == FIT]) & set(red[inputs.buckets != FIT])
    assert np.unique(red, return_counts=True)[1].max() <= 2 * math.ceil(100 / number)


@pytest.mark.parametrize(("pictures", "number"), [(1, 1), (1, 6), (3, 2)])
def test_pictures_that_nothing_is_fitted_on_need_none_to_hold_out(
    dinov2, tmp_path, pictures, number
):
    from PIL import Image

    for i in range(pictures):
        Image.new("RGB", (40, 30), (4 * i, 0, 0)).save(tmp_path / f"{i}.png")
    request = Request((str(tmp_path),), max_length=17, max_inputs=number, held_out=0.5)
    assert (
        len(everything(prepare(dinov2, request, tmp_path, fitted=False))["pixel_values"]) == number
    )
    if pictures == 1:
        with pytest.raises(EigenlensError, match="a study needs at least"):
            prepare(dinov2, request, tmp_path)


def test_a_length_that_is_no_square_or_too_large_is_refused(dinov2, tmp_path):
    with pytest.raises(EigenlensError, match=r"20 tokens are no square of patches.*17 and 26"):
        make(dinov2, "photos", tmp_path / "w", max_length=20, max_inputs=8)
    most = (dinov2.module.config.image_size // dinov2.module.config.patch_size) ** 2 + 1
    over = (math.isqrt(most) + 3) ** 2 + 1
    with pytest.raises(EigenlensError, match=f"{over} is over the maximum of dinov2-small, {most}"):
        make(dinov2, "photos", tmp_path / "w", max_length=over, max_inputs=8)


def test_what_is_no_picture_is_refused(dinov2, tmp_path):
    (tmp_path / "a.png").write_text("not a picture")
    with pytest.raises(EigenlensError, match=r"a\.png is no picture"):
        make(dinov2, tmp_path / "a.png", tmp_path / "w", max_inputs=8)
    with pytest.raises(EigenlensError, match=r"no such data.*photos"):
        make(dinov2, "nowhere", tmp_path / "w", max_inputs=8)


@pytest.fixture(scope="module")
def whisper():
    return load("whisper-tiny-en")


def record(path, samples, rate=16_000, channels=1):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.repeat(samples, channels) * 32767).astype("<i2").tobytes())


def test_recordings_become_clips_with_transcripts(whisper, tmp_path):
    """Tones of known pitch, at two rates, in mono and stereo: the clip holds the pitch, and the
    decoder gets tokens.
    """
    folder = tmp_path / "sounds"
    folder.mkdir()
    pitches = [300, 600, 900, 1200]
    for i, pitch in enumerate(pitches):
        rate = [16_000, 22_050][i % 2]
        record(
            folder / f"{i}.wav",
            0.5 * np.sin(2 * np.pi * pitch * np.arange(rate) / rate),
            rate,
            1 + i // 2,
        )
    inputs = make(whisper, folder, tmp_path / "w", max_length=6, max_inputs=4)
    batch = everything(inputs)
    assert batch["input_features"].shape == (4, whisper.module.config.num_mel_bins, 3000)
    assert batch["decoder_input_ids"].shape == (4, 6)
    assert (batch["decoder_input_ids"][:, 0] == whisper.module.config.decoder_start_token_id).all()
    assert (batch["decoder_attention_mask"].sum(1) >= 2).all()
    assert set(inputs.buckets.tolist()) == {FIT, 0}
    # half a second in: the mel band of the tone
    loudest = batch["input_features"][:, :, 50].argmax(1)
    assert (loudest.diff() > 0).all()


def test_no_more_recordings_are_read_than_wanted(whisper, tmp_path):
    """The fifth file is no recording; with four inputs it is not needed."""
    for i in range(4):
        record(tmp_path / f"{i}.wav", np.zeros(1600))
    (tmp_path / "5.wav").write_text("not a recording")
    inputs = make(whisper, tmp_path, tmp_path / "w", max_length=4, max_inputs=4)
    assert len(inputs.buckets) == 4


def test_what_is_no_recording_is_refused(whisper, tmp_path):
    (tmp_path / "a.wav").write_text("not a recording")
    with pytest.raises(EigenlensError, match=r"a\.wav is no \.wav file"):
        make(whisper, tmp_path / "a.wav", tmp_path / "w", max_length=8, max_inputs=4)
    record(tmp_path / "b.wav", np.zeros(1600), channels=2)
    (tmp_path / "b.wav").write_bytes((tmp_path / "b.wav").read_bytes()[:-3])
    with pytest.raises(EigenlensError, match=r"too little sound|no \.wav file"):
        make(whisper, tmp_path / "b.wav", tmp_path / "w", max_length=8, max_inputs=4)
    with pytest.raises(EigenlensError, match="no such data"):
        make(whisper, tmp_path / "nowhere.wav", tmp_path / "w", max_length=8, max_inputs=4)
