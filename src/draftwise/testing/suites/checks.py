"""What all suites share: how a check fails, is skipped and is run, and how much an object holds."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from functools import cache
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NoReturn, TypeVar
from unittest import SkipTest

from ...errors import one_line

S = TypeVar("S", bound="Suite")
SURE = 1e-3  # a p-value below it is a failure: a correct drafter fails one in a thousand such runs
APART = (ModuleType, FunctionType, BuiltinFunctionType, type)  # nothing that a drafter keeps is behind these


class Suite:
    """A class of checks. Each method named `test_...` is one; pytest collects them, and needs no plug-in.

    What the checks share is made once for each class, and kept in `shared`.
    """

    shared: dict[str, Any]

    def __init_subclass__(cls) -> None:
        cls.shared = {}

    @classmethod
    def checks(cls) -> list[str]:
        """The names of the checks, in order."""
        return [name for kind in reversed(cls.__mro__) for name in vars(kind) if name.startswith("test_")]

    @classmethod
    def failures(cls) -> dict[str, str]:
        """Run all checks, without pytest: the names of those that failed, and what each said."""
        found = {}
        for name in cls.checks():
            try:
                getattr(cls(), name)()
            except SkipTest:
                continue
            except Exception as error:
                found[name] = str(error) if isinstance(error, AssertionError) else one_line(error)
        return found

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` returns, made once for the class."""
        if name not in self.shared:
            self.shared[name] = make()
        return self.shared[name]


def suite_of(base: type[S], options: Mapping[str, Any]) -> type[S]:
    """A suite with these options; functions become static methods."""
    body = {k: staticmethod(v) if callable(v) else v for k, v in options.items() if v is not None}
    return type(base.__name__, (base,), {**body, "__doc__": base.__doc__})


def fail(fault: str, remedy: str) -> NoReturn:
    """End a check: what is wrong, and what to do about it."""
    __tracebackhide__ = True
    raise AssertionError(f"{fault}: {remedy}")


def skip(reason: str) -> NoReturn:
    """Leave out a check that does not apply."""
    raise SkipTest(reason)


def takes_target(make: Callable[..., Any]) -> bool:
    """Whether a function has a parameter `target`, as with the functions behind entry points."""
    return "target" in _parameters(make)


@cache
def _parameters(make: Callable[..., Any]) -> frozenset[str]:
    import inspect

    try:
        return frozenset(inspect.signature(make).parameters)
    except (TypeError, ValueError):  # some built-in types have no signature
        return frozenset()


def size_of(thing: Any) -> int:
    """How much an object holds: references of all that can be reached from it, and bytes of arrays."""
    total, seen, waiting = 0, {id(thing)}, [thing]
    while waiting:
        node = waiting.pop()
        inner = gc.get_referents(node)
        total += len(inner) + _bytes(node)
        for other in inner:
            if id(other) not in seen and not isinstance(other, APART):
                seen.add(id(other))
                waiting.append(other)
    return total


def _bytes(node: Any) -> int:
    size = getattr(type(node), "nbytes", None)
    return int(node.nbytes) if size is not None else 0


def holds(thing: Any, ids: frozenset[int]) -> bool:
    """Whether a whole number out of `ids` can be reached from an object."""
    seen, waiting = {id(thing)}, [thing]
    while waiting:
        for other in gc.get_referents(waiting.pop()):
            if type(other) is int and other in ids:
                return True
            if id(other) not in seen and not isinstance(other, APART):
                seen.add(id(other))
                waiting.append(other)
    return False
