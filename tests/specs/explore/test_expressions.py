import random

import pytest
from kvproof.specs.explore import expressions as ex
from kvproof.specs.explore import walking
from kvproof.specs.explore.expressions import Expr, Value


def grown(chooser: random.Random, depth: int, boolean: bool) -> tuple[Value, object]:
    """A random term over x, y in 0..3 and p, q, and the same as a function of their values."""
    if depth == 0:
        if boolean:
            name = chooser.choice("pq")
            return ex.condition(name), lambda env: bool(env[name])
        if chooser.random() < 0.4:
            number = chooser.randint(-2, 4)
            return number, lambda env: number
        name = chooser.choice("xy")
        return ex.variable(name, 0, 3), lambda env: env[name]
    if boolean:
        kind = chooser.choice(["eq", "le", "and", "or", "not", "ite", "same"])
        if kind in ("eq", "le"):
            (a, f), (b, g) = grown(chooser, depth - 1, False), grown(chooser, depth - 1, False)
            if kind == "eq":
                return ex.equal(a, b), lambda env: f(env) == g(env)
            return ex.at_most(a, b), lambda env: f(env) <= g(env)
        (a, f), (b, g) = grown(chooser, depth - 1, True), grown(chooser, depth - 1, True)
        if kind == "and":
            return ex.both(a, b), lambda env: f(env) and g(env)
        if kind == "or":
            return ex.either(a, b), lambda env: f(env) or g(env)
        if kind == "not":
            return ex.no(a), lambda env: not f(env)
        if kind == "same":
            return ex.equal(a, b), lambda env: f(env) == g(env)
        c, h = grown(chooser, depth - 1, True)
        return ex.choose(c, a, b), lambda env: f(env) if h(env) else g(env)
    kind = chooser.choice(["add", "sub", "mul", "div", "mod", "ite", "min", "max", "total"])
    (a, f), (b, g) = grown(chooser, depth - 1, False), grown(chooser, depth - 1, False)
    divisor = chooser.randint(1, 3)
    match kind:
        case "add":
            return ex.add(a, b), lambda env: f(env) + g(env)
        case "sub":
            return ex.subtract(a, b), lambda env: f(env) - g(env)
        case "mul":
            return ex.multiply(a, b), lambda env: f(env) * g(env)
        case "div":
            return ex.divide(a, divisor), lambda env: f(env) // divisor
        case "mod":
            return ex.modulo(a, divisor), lambda env: f(env) % divisor
        case "min":
            return ex.minimum(a, b), lambda env: min(f(env), g(env))
        case "max":
            return ex.maximum(a, b), lambda env: max(f(env), g(env))
    c, h = grown(chooser, depth - 1, True)
    if kind == "total":
        return ex.total([c, a]), lambda env: int(h(env)) + f(env)
    return ex.choose(c, a, b), lambda env: f(env) if h(env) else g(env)


def worth(value: Value, env: dict[str, int]) -> Value:
    """What a term is worth: every variable replaced by a constant, and folded."""
    known = {}
    for name, number in env.items():
        node = ex.condition(name) if name in "pq" else ex.variable(name, 0, 3)
        assert isinstance(node, Expr)
        known[node.index] = bool(number) if name in "pq" else number
    return walking.replace(value, known, {})


STATES = [
    {"x": x, "y": y, "p": p, "q": q}
    for x in range(4)
    for y in range(4)
    for p in range(2)
    for q in range(2)
]


@pytest.mark.parametrize("seed", range(60))
def test_folding_never_changes_what_a_term_is_worth(seed: int) -> None:
    chooser = random.Random(seed)
    value, function = grown(chooser, 4, chooser.random() < 0.5)
    for env in STATES:
        found = worth(value, env)
        assert not isinstance(found, Expr)
        assert int(found) == int(function(env)), (value, env)
        assert ex.low_of(value) <= int(found) <= ex.high_of(value)


def test_equal_terms_are_one_object() -> None:
    x, y = ex.variable("x", 0, 3), ex.variable("y", 0, 3)
    assert ex.add(x, y) is ex.add(y, x)
    assert ex.both(ex.equal(x, 1), ex.equal(y, 2)) is ex.both(ex.equal(y, 2), ex.equal(x, 1))


def test_what_the_interval_decides_is_a_constant() -> None:
    x = ex.variable("x", 0, 3)
    assert ex.at_most(x, 3) is True
    assert ex.equal(x, 4) is False
    assert ex.both(ex.equal(x, 1), ex.equal(x, 2)) is False


def test_a_term_has_no_truth_of_its_own() -> None:
    x = ex.variable("x", 0, 3)
    with pytest.raises(TypeError, match="not known"):
        bool(ex.equal(x, 1))


def test_a_guard_says_what_is_known_behind_it() -> None:
    x, p = ex.variable("x", 0, 3), ex.condition("p")
    guard = ex.both(ex.equal(x, 2), ex.no(p))
    value = ex.choose(p, 7, ex.add(x, 1))
    assert walking.replace(value, walking.learned(guard), {}) == 3
