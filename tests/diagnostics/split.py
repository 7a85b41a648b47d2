"""A pass in parts is the pass whole: what every diagnostic must keep, on real states."""

import torch

from diagnostics.passes import diagnosed


def assert_parts_make_the_whole(make, model, batches):
    """Three batches in one pass, as (a + b) + c and as a + (b + c).

    A state read back is the same to the last bit.
    """

    def of(*some):
        diagnostic = make()
        diagnosed(model, some, diagnostic)
        return diagnostic

    a, b, c = batches
    whole, left, right = of(a, b, c), of(a), of(b)
    left.merge(of(b))
    left.merge(of(c))
    right.merge(of(c))
    first = of(a)
    first.merge(right)
    for found in (left, first):
        assert found.state().keys() == whole.state().keys()
        for name, x in whole.state().items():
            torch.testing.assert_close(found.state()[name], x, rtol=1e-9, atol=1e-9, msg=name)
    again = type(whole).from_state(
        {name: x.clone() for name, x in whole.state().items()}, **vars(whole.settings)
    )
    assert all(torch.equal(x, again.state()[name]) for name, x in whole.state().items())
    assert again.result().record() == whole.result().record()
    assert whole.result().applies
    return whole
