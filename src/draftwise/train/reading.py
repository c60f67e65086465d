"""Options from a YAML file and from the command line: both accept every field of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from ..errors import UserError
from .settings import Run

R = TypeVar("R", bound=Run)


def read(kind: type[R], config: Path | None, given: Mapping[str, Any]) -> R:
    """Options from a YAML file and from the command line, which takes precedence.

    Raises:
        UserError: the file cannot be read, or an option is unknown or invalid.
    """
    found = dict(_yaml(config)) if config else {}
    known = get_type_hints(kind)
    if unknown := sorted(found.keys() - known.keys()):
        raise UserError(f"{config}: no option {unknown[0]!r}; choose from {', '.join(sorted(known))}")
    found |= {name: value for name, value in given.items() if value is not None}
    return kind(**{name: _fitting(name, value, known[name]) for name, value in found.items()})


def plain(run: Run) -> dict[str, Any]:
    """The options as YAML and JSON values."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(run).items()}


def defaults(kind: type[Run]) -> dict[str, tuple[Any, str]]:
    """Every option's default and help text, by name."""
    return {f.name: (f.default, f.metadata["help"]) for f in fields(kind)}


def packages() -> None:
    """Check that the packages that only training needs are installed.

    Raises:
        UserError: one is missing.
    """
    missing = [name for name in ("accelerate", "matplotlib", "sklearn", "yaml") if find_spec(name) is None]
    if missing:
        raise UserError(f"training needs {', '.join(missing)}: pip install 'draftwise[train]'")


def _yaml(path: Path) -> dict[str, Any]:
    packages()
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UserError(f"cannot read the options in {path}: {reason}; name a YAML file") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} has no options: write one `name: value` a line")
    return {str(key).replace("-", "_"): value for key, value in found.items()}


def _fitting(name: str, value: Any, kind: Any) -> Any:
    """A value of an option's type; lists may be written with commas."""
    if kind in (int, float):
        return _number(name, value, kind)
    if kind is bool:
        if isinstance(value, bool):
            return value
        raise UserError(f"{name}={value!r}: write true or false")
    if kind is str:
        if isinstance(value, str):
            return value
        raise UserError(f"{name}={value!r}: write a text")
    items = [x.strip() for x in value.split(",")] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        items = [items]
    if any(x is None or x == "" for x in items):
        raise UserError(f"{name} has an empty part: give A,B")
    if kind == tuple[float, ...]:
        return tuple(_number(name, x, float) for x in items)
    return tuple(str(x) for x in items)


def _number(name: str, value: Any, kind: type[int] | type[float]) -> float:
    said = f"{name}={value!r} is not {'a whole number' if kind is int else 'a number'}: correct it"
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise UserError(said)
    if kind is int and isinstance(value, float) and value != int(value):
        raise UserError(said)
    try:
        return kind(value)
    except ValueError:
        raise UserError(said) from None
