"""What checks for finite numbers give in a healthy training."""

from __future__ import annotations

import pytest

from vramscope.dry_run.finite_checks import healthy_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("torch.isfinite(loss)", True),
        ("torch.isfinite(grad).all()", True),
        ("not torch.isfinite(grad).all()", False),
        ("(~torch.isfinite(grad)).any()", False),
        ("torch.logical_not(torch.isfinite(grad)).any()", False),
        ("torch.isnan(grad).any().item()", False),
        ("torch.isnan(x).any() or torch.isinf(x).any()", False),
        ("(torch.isnan(x) | torch.isinf(x)).any()", False),
        ("torch.isnan(x).sum() == 0", True),
        ("torch.isnan(x).sum() > 0", False),
        ("torch.isfinite(x).sum() == 0", False),
        ("torch.isfinite(x).all() == False", False),
        ("(torch.isfinite(x) == False).any()", False),
        ("torch.any(~torch.isfinite(x))", False),
        ("torch.all(torch.isfinite(x))", True),
        ("any((~torch.isfinite(x)).any() for x in xs)", False),
        ("self.found_inf", False),
        ("has_overflow(params)", False),
        ("found_inf.item() > 0", False),
        ("torch.isfinite(g).sum() < g.numel()", False),
        ("torch.isfinite(g).sum() != g.numel()", False),
        ("torch.isfinite(g).sum() == g.numel()", True),
        ("torch.isnan(g).sum() > limit", False),
        ("torch.isnan(g).float().mean() < 0.1", True),
        ("torch.isfinite(g).float().mean() < 1.0", False),
        ("torch.isfinite(x).all() == 1", True),
        ("is_infinite(loss)", False),
        ("definite", None),
        ("bool(is_finite)", True),
        ("    if torch.isnan(x).any(): pass", False),
        ("loss > 3", None),
        ("masks[finite_rows]", None),
        ("y = bool(x)", None),
    ],
)
def test_a_check_gives_the_value_of_finite_numbers(text, value):
    assert healthy_value(text) is value
