"""Terms of the explorer: small integer expressions, hash-consed and folded as they are built.

The symbolic executor's terms are translated into these once (`translate`). Every node knows the
interval that its value lies in, so that most conditions fold away when an instance fixes sizes
and an action fixes its arguments; what is left is compiled to array operations or printed as
Promela. Nothing here decides anything: folding uses exact identities only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeAlias

#: Beyond the range of every value that a finite instance can hold.
UNBOUNDED = 1 << 40


class Expr:
    """A node: an operator over other nodes and plain ints. `low`..`high` bounds its value.

    Ops: var, add, sub, mul, div, mod, ite (ints); var, eq, le, and, or, not, ite (booleans).
    Nodes are unique: equal terms are one object.
    """

    __slots__ = ("args", "boolean", "high", "index", "low", "op")

    op: str
    args: tuple[Any, ...]
    boolean: bool
    low: int
    high: int
    index: int

    def __hash__(self) -> int:
        return self.index

    def __bool__(self) -> NoReturn:
        raise TypeError(f"the truth of {self} is not known: use `choose`, `both`, `either`, `no`")

    def __repr__(self) -> str:
        if self.op == "var":
            return str(self.args[0])
        return f"{self.op}({', '.join(map(repr, self.args))})"

    def __add__(self, other: Value) -> Value:
        return add(self, other)

    __radd__ = __add__

    def __sub__(self, other: Value) -> Value:
        return subtract(self, other)

    def __rsub__(self, other: Value) -> Value:
        return subtract(other, self)

    def __mul__(self, other: Value) -> Value:
        return multiply(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> Value:
        return divide(self, other)

    def __mod__(self, other: int) -> Value:
        return modulo(self, other)

    def __eq__(self, other: object) -> Any:
        return equal(self, other)

    def __ne__(self, other: object) -> Any:
        return no(equal(self, other))

    def __le__(self, other: Value) -> Value:
        return at_most(self, other)

    def __lt__(self, other: Value) -> Value:
        return no(at_most(other, self))

    def __ge__(self, other: Value) -> Value:
        return at_most(other, self)

    def __gt__(self, other: Value) -> Value:
        return no(at_most(self, other))

    def __and__(self, other: Value) -> Value:
        return both(self, other)

    __rand__ = __and__

    def __or__(self, other: Value) -> Value:
        return either(self, other)

    __ror__ = __or__


#: A plain int or bool where it is known, else a node.
Value: TypeAlias = "Expr | int"

_interned: dict[tuple[Any, ...], Expr] = {}


def _key(value: Any) -> Any:
    # A bool and the int that equals it are told apart by the operator, never by the argument.
    return ("#", value.index) if isinstance(value, Expr) else value


def _node(op: str, args: tuple[Any, ...], boolean: bool, low: int, high: int) -> Value:
    if low == high:
        return bool(low) if boolean else low
    key = (op, boolean, *map(_key, args))
    found = _interned.get(key)
    if found is None:
        found = object.__new__(Expr)
        found.op, found.args, found.boolean, found.low, found.high = op, args, boolean, low, high
        found.index = len(_interned)
        _interned[key] = found
    return found


def variable(name: str, low: int = -UNBOUNDED, high: int = UNBOUNDED) -> Value:
    """An int variable; a constant if its interval is one number."""
    return _node("var", (name, low, high), False, low, high)


def condition(name: str) -> Value:
    """A boolean variable."""
    return _node("var", (name, 0, 1), True, 0, 1)


def low_of(value: Value) -> int:
    """The least that it can be."""
    return value.low if isinstance(value, Expr) else int(value)


def high_of(value: Value) -> int:
    """The most that it can be."""
    return value.high if isinstance(value, Expr) else int(value)


def is_boolean(value: Value) -> bool:
    """Whether it is a truth value rather than a number."""
    return value.boolean if isinstance(value, Expr) else isinstance(value, bool)


def number(value: Value) -> Value:
    """A truth value as 0 or 1; a number as it is."""
    if isinstance(value, Expr):
        return choose(value, 1, 0) if value.boolean else value
    return int(value)


def truth(value: Value) -> Value:
    """A number as "is not zero"; a truth value as it is."""
    if isinstance(value, Expr):
        return value if value.boolean else no(equal(value, 0))
    return bool(value)


# --- arithmetic ---------------------------------------------------------------------------------


def _through_choice(function: Callable[[Value], Value], value: Value) -> Value | None:
    """Apply to both branches where that gets rid of at least one of them."""
    if isinstance(value, Expr) and value.op == "ite" and not value.boolean:
        test, then, otherwise = value.args
        if not isinstance(then, Expr) or not isinstance(otherwise, Expr):
            return choose(test, function(then), function(otherwise))
    return None


def _equals_constant(value: Value, right: int) -> Value:
    """Ask a choice for a constant by asking its branches; each distinct node once."""
    if not (isinstance(value, Expr) and value.op == "ite"):
        return equal(value, right)
    if right < value.low or right > value.high:
        return False
    key = (value.index, right)
    found = _compared.get(key)
    if found is None:
        test, then, otherwise = value.args
        found = choose(test, _equals_constant(then, right), _equals_constant(otherwise, right))
        _compared[key] = found
    return found


_compared: dict[tuple[int, int], Value] = {}


def _ordered(left: Value, right: Value) -> tuple[Any, Any]:
    """The same two, a node first if there is one."""
    return (left, right) if isinstance(left, Expr) else (right, left)


def add(left: Value, right: Value) -> Value:
    """left + right."""
    left, right = _ordered(number(left), number(right))
    if not isinstance(left, Expr):
        return left + right
    if not isinstance(right, Expr):
        if right == 0:
            return left
        if left.op == "add" and not isinstance(left.args[1], Expr):
            return add(left.args[0], left.args[1] + right)
        pushed = _through_choice(lambda each: add(each, right), left)
        if pushed is not None:
            return pushed
    elif right.index < left.index:
        left, right = right, left
    return _node("add", (left, right), False, left.low + low_of(right), left.high + high_of(right))


def subtract(left: Value, right: Value) -> Value:
    """left - right."""
    left, right = number(left), number(right)
    if not isinstance(right, Expr):
        return add(left, -right)
    if left is right:
        return 0
    pushed = _through_choice(lambda each: subtract(left, each), right)
    if pushed is not None and not isinstance(left, Expr):
        return pushed
    return _node("sub", (left, right), False, low_of(left) - right.high, high_of(left) - right.low)


def multiply(left: Value, right: Value) -> Value:
    """left * right."""
    left, right = _ordered(number(left), number(right))
    if not isinstance(left, Expr):
        return left * right
    if not isinstance(right, Expr):
        if right in (0, 1):
            return left if right else 0
        pushed = _through_choice(lambda each: multiply(each, right), left)
        if pushed is not None:
            return pushed
    corners = [a * b for a in (left.low, left.high) for b in (low_of(right), high_of(right))]
    return _node("mul", (left, right), False, min(corners), max(corners))


def divide(left: Value, right: int) -> Value:
    """left // right, rounded down. `right` is a positive constant."""
    if right <= 0:
        raise ValueError(f"division by {right}, which is not positive")
    left = number(left)
    if right == 1:
        return left
    if not isinstance(left, Expr):
        return left // right
    pushed = _through_choice(lambda each: divide(each, right), left)
    if pushed is not None:
        return pushed
    return _node("div", (left, right), False, left.low // right, left.high // right)


def modulo(left: Value, right: int) -> Value:
    """left % right, in 0..right-1. `right` is a positive constant."""
    if right <= 0:
        raise ValueError(f"remainder by {right}, which is not positive")
    left = number(left)
    if not isinstance(left, Expr):
        return int(left) % right
    if left.low >= 0 and left.high < right:
        return left
    pushed = _through_choice(lambda each: modulo(each, right), left)
    if pushed is not None:
        return pushed
    return _node("mod", (left, right), False, 0, right - 1)


# --- conditions ---------------------------------------------------------------------------------


def equal(left: Any, right: Any) -> Value:
    """left == right."""
    if is_boolean(left) and is_boolean(right):
        if not isinstance(left, Expr):
            left, right = right, left
        if not isinstance(left, Expr):
            return bool(left == right)
        if not isinstance(right, Expr):
            return left if right else no(left)
        if left is right:
            return True
        return choose(left, right, no(right))
    left, right = number(left), number(right)
    if not isinstance(left, Expr):
        left, right = right, left
    if not isinstance(left, Expr):
        return bool(left == right)
    if left is right:
        return True
    if left.high < low_of(right) or high_of(right) < left.low:
        return False
    if not isinstance(right, Expr):
        if left.op == "ite":
            return _equals_constant(left, int(right))
        if left.op == "add" and not isinstance(left.args[1], Expr):
            return equal(left.args[0], right - left.args[1])
        if left.op == "add" and right == 0 and all(low_of(part) >= 0 for part in left.args):
            # Nothing is counted: each part by itself says so to whoever reads the guard.
            return both(*(equal(part, 0) for part in left.args))
    elif right.index < left.index:
        left, right = right, left
    return _node("eq", (left, right), True, 0, 1)


def at_most(left: Value, right: Value) -> Value:
    """left <= right."""
    left, right = number(left), number(right)
    if high_of(left) <= low_of(right):
        return True
    if low_of(left) > high_of(right):
        return False
    if left is right:
        return True
    if not isinstance(right, Expr):
        pushed = _through_choice(lambda each: at_most(each, right), left)
        if pushed is not None:
            return pushed
        if isinstance(left, Expr) and left.op == "add" and not isinstance(left.args[1], Expr):
            return at_most(left.args[0], right - left.args[1])
        if low_of(left) == right:
            return equal(left, right)
    if not isinstance(left, Expr):
        pushed = _through_choice(lambda each: at_most(left, each), right)
        if pushed is not None:
            return pushed
        if isinstance(right, Expr) and right.op == "add" and not isinstance(right.args[1], Expr):
            return at_most(left - right.args[1], right.args[0])
        if high_of(right) == left:
            return equal(right, left)
        # One form for a bound: x <= c and not x <= c.
        return no(at_most(right, left - 1))
    return _node("le", (left, right), True, 0, 1)


def no(value: Value) -> Value:
    """It does not hold."""
    value = truth(value)
    if not isinstance(value, Expr):
        return not value
    if value.op == "not":
        inner: Value = value.args[0]
        return inner
    return _node("not", (value,), True, 0, 1)


def both(*parts: Value) -> Value:
    """All of them hold."""
    return _joined("and", parts)


def either(*parts: Value) -> Value:
    """At least one of them holds."""
    return _joined("or", parts)


def _joined(op: str, parts: Iterable[Value]) -> Value:
    absorbing = op == "or"
    kept: dict[int, Expr] = {}
    pending = list(parts)[::-1]
    while pending:
        part = truth(pending.pop())
        if not isinstance(part, Expr):
            if part == absorbing:
                return absorbing
        elif part.op == op:
            pending.extend(reversed(part.args))
        else:
            kept[part.index] = part
    constants: dict[int, int] = {}
    for part in kept.values():
        if part.op == "not" and part.args[0].index in kept:
            return absorbing
        if op == "and" and part.op == "eq" and not isinstance(part.args[1], Expr):
            known = constants.setdefault(part.args[0].index, part.args[1])
            if known != part.args[1]:  # x == 1 and x == 2
                return False
    # x != 2 says nothing beside x == 1.
    found = [
        part
        for part in kept.values()
        if not (
            op == "and"
            and part.op == "not"
            and part.args[0].op == "eq"
            and not isinstance(part.args[0].args[1], Expr)
            and part.args[0].args[0].index in constants
        )
    ]
    if not found:
        return not absorbing
    if len(found) == 1:
        return found[0]
    return _node(op, tuple(sorted(found, key=lambda part: part.index)), True, 0, 1)


def choose(test: Value, then: Value, otherwise: Value) -> Value:
    """`then` where the test holds, else `otherwise`: both numbers, or both truth values."""
    test = truth(test)
    if not isinstance(test, Expr):
        return then if test else otherwise
    if then is otherwise:
        return then
    if test.op == "not":
        return choose(test.args[0], otherwise, then)
    boolean = is_boolean(then) and is_boolean(otherwise)
    if not boolean:
        then, otherwise = number(then), number(otherwise)
    if not isinstance(then, Expr) and not isinstance(otherwise, Expr) and then == otherwise:
        return then
    # A branch that asks the same question again.
    if isinstance(then, Expr) and then.op == "ite" and then.args[0] is test:
        return choose(test, then.args[1], otherwise)
    if isinstance(otherwise, Expr) and otherwise.op == "ite" and otherwise.args[0] is test:
        return choose(test, then, otherwise.args[2])
    if boolean:
        if not isinstance(then, Expr):
            return either(test, otherwise) if then else both(no(test), otherwise)
        if not isinstance(otherwise, Expr):
            return either(no(test), then) if otherwise else both(test, then)
        return _node("ite", (test, then, otherwise), True, 0, 1)
    low = min(low_of(then), low_of(otherwise))
    high = max(high_of(then), high_of(otherwise))
    if test.op == "le" and _same(test.args[1], then) and _same(test.args[0], otherwise):
        low = max(low_of(then), low_of(otherwise))  # the larger of two
    if test.op == "le" and _same(test.args[0], then) and _same(test.args[1], otherwise):
        high = min(high_of(then), high_of(otherwise))  # the smaller of two
    return _node("ite", (test, then, otherwise), False, low, high)


def _same(left: Value, right: Value) -> bool:
    if isinstance(left, Expr) or isinstance(right, Expr):
        return left is right
    return left == right


def total(values: Iterable[Value]) -> Value:
    """The sum; truth values count as 0 or 1."""
    result: Value = 0
    for value in values:
        result = add(result, value)
    return result


def minimum(left: Value, right: Value) -> Value:
    """The smaller number."""
    return choose(at_most(left, right), left, right)


def maximum(left: Value, right: Value) -> Value:
    """The larger number."""
    return choose(at_most(left, right), right, left)
