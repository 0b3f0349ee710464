"""Hooks: `tap` measures, `edit` replaces and `capture` keeps activations; none leaves a handle behind."""

import pandas as pd
import pytest
import torch
from torch import nn

from lab.measure.hooks import capture, edit, tap


def rms(x):
    return x.square().mean().sqrt()


def per_channel(x):
    return x.flatten(0, -2).mean(0)


@pytest.fixture
def model():
    torch.manual_seed(0)
    shared = nn.Linear(4, 4)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), shared, shared, nn.Linear(4, 2))


@pytest.fixture
def x():
    return torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(1))


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._backward_hooks) for m in model.modules())


def test_tap_records_measures_and_leaves_outputs_unchanged(model, x):
    expected = model(x)
    with tap(model, {"0": [rms, lambda y: y.requires_grad], "4": per_channel}) as table:
        torch.testing.assert_close(model(x), expected, rtol=0, atol=0)
    rows = table()
    assert list(rows.columns) == ["site", "measure", "call", "index", "value"]
    number = rows[(rows.site == "0") & (rows.measure == "rms")]
    assert number["value"].item() == pytest.approx(rms(model[0](x)).item())  # before the following in-place ReLU
    assert number["index"].isna().all()
    assert rows["value"][rows.measure == "<lambda>"].item() == 0  # measures see a detached tensor
    vector = rows[rows.site == "4"]
    assert vector["index"].tolist() == [0, 1]
    assert vector["value"].tolist() == pytest.approx(expected.mean((0, 1)).tolist())
    assert rows["value"].dtype == float and rows["index"].dtype == pd.Int64Dtype()


def test_module_called_twice_gives_two_rows(model, x):
    with tap(model, {"2": rms}) as table:
        model(x)
    first = model[2](model[:2](x))
    assert table()[["site", "call"]].values.tolist() == [["2", 0], ["2", 1]]
    assert table()["value"].tolist() == pytest.approx([rms(first).item(), rms(model[2](first)).item()])


def test_overlapping_globs_measure_once(model, x):
    with tap(model, {"*": rms, "0": [rms, torch.std]}) as table:
        model(x)
    assert not table().duplicated(["site", "measure", "call"]).any()
    assert set(table().query("site == '0'").measure) == {"rms", "std"}


@pytest.mark.parametrize("gradients", [False, True])
def test_no_hook_remains_after_exit_or_exception(model, x, gradients):
    with tap(model, {"*": rms}, gradients=gradients) as table:
        out = model(x)
        out.sum().backward()
    rows = len(table())
    assert hooks(model) == 0 and rows == 6
    out = model(x)
    with pytest.raises(ZeroDivisionError), tap(model, {"*": rms}, gradients=gradients) as table:
        out = model(x)
        raise ZeroDivisionError
    rows = len(table())
    out.sum().backward()
    assert hooks(model) == 0 and len(table()) == rows
    with pytest.raises(ZeroDivisionError), tap(model, {"0": lambda _: 1 / 0}):
        model(x)
    assert hooks(model) == 0


@pytest.mark.parametrize("verb, function", [(tap, rms), (edit, torch.relu)])
def test_unmatched_or_uncalled_modules_raise(verb, function, model, x):
    with pytest.raises(LookupError, match=r"'attn\.\*' matches no module.*'0', '1', '2', '4'"):
        with verb(model, {"0": function, "attn.*": function}):
            pass
    assert hooks(model) == 0
    with (
        pytest.raises(RuntimeError, match=r"modules were never called: \['4'\]"),
        verb(model, {"0": function, "4": function}),
    ):
        model[:2](x)
    with pytest.raises(KeyError), verb(model, {"4": function}):  # not masked by the hook's own error
        raise KeyError
    assert hooks(model) == 0


def test_module_whose_weights_are_used_without_calling_it_raises():
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(1, 3, 8)
    with (
        pytest.raises(RuntimeError, match="modules were never called.*out_proj"),
        tap(attention, {"out_proj": rms}),
    ):
        attention(x, x, x)
    with tap(attention, {"": rms}) as table:  # of a tuple the first element is measured
        out, _ = attention(x, x, x)
    assert table()["value"].item() == pytest.approx(rms(out).item())


@pytest.mark.parametrize("flat", [False, True])  # nn.Linear returns a view for (b, n, d), not for (n, d)
def test_tapped_gradients_equal_autograd(model, x, flat):
    x = x.flatten(0, 1) if flat else x
    with tap(model, {"0": [rms, per_channel], "2": rms}, gradients=True) as table:
        model(x).square().sum().backward()
    hidden = model[0](x)
    once = model[2](hidden.relu())
    twice = model[3](once)
    expected = torch.autograd.grad(model[4](twice).square().sum(), (hidden, once, twice))
    rows = table().set_index(["site", "measure", "call"])["value"]
    assert rows["0", "rms", 0].item() == pytest.approx(rms(expected[0]).item(), rel=1e-5)
    assert rows["0", "per_channel", 0].tolist() == pytest.approx(per_channel(expected[0]).tolist(), rel=1e-5)
    assert rows["2", "rms", 0].item() == pytest.approx(rms(expected[1]).item(), rel=1e-5)
    assert rows["2", "rms", 1].item() == pytest.approx(rms(expected[2]).item(), rel=1e-5)


def test_missing_backward_raises(model, x):
    with (
        pytest.raises(RuntimeError, match="modules were never called.*no gradient"),
        tap(model, {"0": rms}, gradients=True),
    ):
        model(x)


def test_measure_must_return_a_scalar_or_vector(model, x):
    with pytest.raises(TypeError, match=r"shape \(2, 5, 4\)"), tap(model, {"0": torch.abs}):
        model(x)


def test_edit_replaces_the_output_that_tap_measures(model, x):
    before = model(x)
    with edit(model, {"4": [torch.zeros_like, lambda y: y + 2]}), tap(model, {"4": rms}) as table:
        torch.testing.assert_close(model(x), torch.full_like(before, 2))
    assert table()["value"].item() == 2
    torch.testing.assert_close(model(x), before, rtol=0, atol=0)
    assert hooks(model) == 0
    with pytest.raises(TypeError, match="returned NoneType"), edit(model, {"4": lambda y: None}):
        model(x)


def test_edit_replaces_the_first_element_of_a_tuple():
    lstm, x = nn.LSTM(3, 4), torch.randn(5, 2, 3)
    _, (state, _) = lstm(x)
    with edit(lstm, {"": torch.zeros_like}):
        out, (edited_state, _) = lstm(x)
    assert not out.any() and torch.equal(state, edited_state)


def test_capture_keeps_outputs_or_inputs_in_call_order(model, x):
    expected = model(x)
    with capture([model[0], model[2]]) as outputs, capture(list(model), inputs=True) as inputs:
        assert torch.equal(model(x), expected)
    assert not any(out.requires_grad for out in outputs) and hooks(model) == 0
    first = model[0](x)
    once = model[2](first.relu())
    # the ReLU is in place, so the first output is captured after it
    for actual, reference in zip(outputs, (first.relu(), once, model[2](once)), strict=True):
        assert torch.equal(actual, reference)
    assert len(inputs) == 5 and torch.equal(inputs[0][0], x) and torch.equal(inputs[4][0], outputs[2])


def test_capture_takes_the_first_tuple_element_and_reports_uncalled_modules(model, x):
    lstm, sequence = nn.LSTM(3, 4), torch.randn(5, 2, 3)
    with capture([lstm]) as kept:
        out, _ = lstm(sequence)
    assert torch.equal(kept[0], out)
    with pytest.raises(RuntimeError, match="modules were never called: .*Linear"), capture(model):
        model[:2](x)
    with pytest.raises(KeyError), capture(model):  # not masked by the hook's own error
        raise KeyError
    assert hooks(model) == 0
