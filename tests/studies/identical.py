"""Two studies that must not differ."""

from safetensors.torch import load_file

from eigenlens import Study


def assert_same_tensors(one, two):
    """Bit by bit, file by file."""
    assert sorted(p.name for p in one.glob("*.safetensors")) == sorted(
        p.name for p in two.glob("*.safetensors")
    )
    for file in one.glob("*.safetensors"):
        a, b = load_file(file), load_file(two / file.name)
        assert a.keys() == b.keys()
        for name in a:
            assert a[name].numpy().tobytes() == b[name].numpy().tobytes(), (file.name, name)


def assert_identical(one, two):
    """Numbers and facts, with nothing left over from the work."""
    files, others = (sorted(p.name for p in folder.iterdir()) for folder in (one, two))
    assert files == others, (files, others)
    assert_same_tensors(one, two)
    facts = [
        {k: v for k, v in Study.open(f).stored.items() if k not in ("seconds", "created")}
        for f in (one, two)
    ]
    assert facts[0] == facts[1]
